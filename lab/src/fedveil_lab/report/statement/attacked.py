"""Section of a report on attacks: which were made, how strong they were, and what was not attacked.

All of it is measured by the author; no ledger has it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil_lab.report.statement.document import WORDS, Fact, Grid, Picture, ReportSection
from fedveil_lab.report.statement.figures import roc_charts


def attacked(
    audits: Sequence[Mapping[str, Any]], drawn: Mapping[str, bytes], settings: Sequence[str]
) -> ReportSection:
    """Make the section on attacks from finished audits, with their pictures if there are any."""
    rows, lines, pictures = [], [], []
    for audit in audits:
        game = audit["game"]
        lines.append(Fact.of(f"{game}: how strongly", _strength(audit), audit.get("unit")))
        for label, bound in audit.get("together", {}).items():
            proven = f"epsilon of at least {bound['lower']:.2f}, where {bound['ceiling']:.2f} is the most that so many"
            lines.append(Fact(f"{label}: all attacks together prove", f"{proven} runs can prove"))
        reasons = dict.fromkeys((one["attack"], one["reason"]) for one in audit.get("refused", ()))
        for attack, reason in reasons:
            lines.append(Fact(f"{game}, {attack}: not run", reason))
        shown: dict[str, None] = {}
        for result in audit.get("results", ()):
            rows.append(_verdict(game, result))
            shown[result["setting"]] = None
        for attack, digest in audit.get("pictures", {}).items():
            text = f"clients' images, and what the attack {attack} made of the releases of {', '.join(shown)}"
            if digest in drawn:
                pictures.append(Picture(f"{game}: {attack}", text, digest))
        if audit.get("pictures") and not drawn:
            lines.append(
                Fact(
                    f"{game}: pictures",
                    "left out: they show clients' images; --pictures puts them in",
                )
            )
    played = {audit["game"] for audit in audits}
    for name, what in WORDS["asked"].items():
        if name not in played:
            lines.append(Fact(f"{name}: {what}"))
    lines.append(Fact("attacks that nobody has thought of, and stronger ones"))
    header = (
        "game",
        "attack",
        "setting",
        "figure",
        "reached (95%)",
        "without the defence",
        "works there",
    )
    tables = [Grid("", header, rows)] * bool(rows)
    return ReportSection(
        "attacked", lines, tables, roc_charts(audits, settings), pictures, said=True
    )


def _strength(audit: Mapping[str, Any]) -> str | None:
    if "canaries" in audit:
        return f"{audit['canaries']} canaries in one run of each method, whose settings are not those above"
    if "images" in audit:
        clients = (
            f"{audit['clients']} clients at the most, {audit['images']} images each, one round"
        )
        return f"{clients}; nu: other noise, in lengths of the update"
    if "replicates" in audit:
        return f"{audit['replicates']} independent runs a side"
    return None


def _verdict(game: str, result: Mapping[str, Any]) -> list[str]:
    at = result.get("auc", result)  # as audits before Verdict wrote it
    reached = f"{at['point']:.3g}"
    if at["low"] < at["high"]:
        reached += f" ({at['low']:.3g} to {at['high']:.3g})"
    undefended = ""
    if result.get("without_defence") is not None:
        undefended = f"{result['without_defence']:.3g}"
    works = {True: "yes", False: "no", None: ""}[result.get("valid")]
    details = []
    for name, value in result.get("details", {}).items():
        if "without defence" not in name:
            details.append(f"{name.replace('_', ' ')} {value:.3g}")
    figure = "; ".join(filter(None, [result.get("figure", "AUC"), ", ".join(details)]))
    where = [game, result["attack"], result["setting"], figure]
    return [*where, reached, undefended, works]
