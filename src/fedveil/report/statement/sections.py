"""What a report says, in the order of a reader's questions: the promise first, then what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.engines.party import SERVER
from fedveil.report.spent import spent_of
from fedveil.report.statement.document import Fact, Grid, ReportSection
from fedveil.report.statement.figures import accuracy_rows, curves, largest_epsilon, roc_charts
from fedveil.report.statement.gather import Gathered, Run
from fedveil.report.statement.words import FROM, SEES, UNITS, beside, epsilon_of, percent, protected
from fedveil.report.table import NOTHING

Promises = Mapping[str, Mapping[str, Any]]  # by party
CHOSEN = (
    ("privacy", "clip"),
    ("privacy", "epsilon"),
    ("privacy", "noise_multiplier"),
    ("local", "lr"),
    ("local", "epochs"),
)
BINDS = {
    "trust": "methods of another trust model are refused",
    "methods": "any other method is refused",
    "release": "a release that would cost more is refused before data are touched",
    "total": "a release after which the data set's ledger would hold more is refused before data are touched",
    "relations": "promises under another relation are refused",
    "secure_source": "noise that could be drawn again is refused",
    "deadline": "training that takes longer counts as failed, and a zero update is sent",
    "records_per_person": "releases for records count as releases for persons, too",
}
ASKED = {
    "participation": "whether a client takes part",
    "membership": "whether a record, or a person, was trained on",
    "inversion": "what training images looked like",
}


def sections_of(found: Gathered) -> list[ReportSection]:
    """All of them; those without anything to say, too."""
    runs = by_setting(found.runs)
    return [
        unit_of({label: largest_epsilon(own).promises for label, own in runs.items()}),
        _trust(runs, found.people),
        _leaves(runs, found.people),
        ReportSection(
            "accuracy",
            "How accurate the model is, with and without",
            _accuracy_lines(found.runs),
            [accuracy_rows(runs)] if runs else [],
            curves(runs),
        ),
        _attacked(found.audits, list(runs)),
        _tuned(found.runs, found.people),
        _budget(found),
        _policy(found.policy),
        _origin(found.runs),
        _approval(found.people),
    ]


def by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by their setting's label; several are repetitions under other seeds."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.summary.setting, []).append(run)
    return grouped


def headline_of(promises: Mapping[str, Promises]) -> list[dict[str, str]]:
    """Who is protected from whom, a sentence a setting."""
    return [{"setting": label, "text": protected(next(iter(own.values())))} for label, own in promises.items()]


def unit_of(promises: Mapping[str, Promises]) -> ReportSection:
    """Whom the promises of each setting, by party, are about, and how strong they are."""
    rows, lines = [], []
    for label, own in promises.items():
        for party, promise in own.items():
            proven = promise["status"] in ("formal", "conditional")
            cells = [UNITS[promise["unit"]].split(",")[0] if promise["status"] != "none" else "", promise["status"]]
            cells += [promise["relation"] if proven else "", epsilon_of(promise) or ""]
            accuracy = percent(promise["meaning"]["accuracy"]) if "meaning" in promise else ""
            rows.append([label, party, *cells, accuracy])
            lines += [Fact(f"{label}: besides", text) for text in beside(promise)]
            if conditions := promise.get("conditions"):
                lines.append(Fact(f"{label}: holds if", "; and if ".join(conditions)))
    header = ("setting", "party", "unit", "status", "neighbours", "largest epsilon of anyone", "attacker is right")
    return ReportSection("unit", "A person, an image or a hospital?", lines, [Grid("", header, rows)] if rows else [])


def _trust(runs: Mapping[str, Sequence[Run]], people: Mapping[str, Any]) -> ReportSection:
    rows, engines = [], set[str]()
    for label, own in runs.items():
        values = own[0].summary.values
        engines.add(values["engine"])
        status = own[0].worst["status"]
        server, client = SEES["central" if status == "none" else values["trust"]]
        promised = FROM[values["trust"]] if status in ("formal", "conditional") else "nobody: nothing is promised"
        rows.append([label, server, client, promised])
    alone = "none: all clients ran on one machine, as in an experiment" if engines == {"local"} else None
    lines = [Fact.of("how messages were protected on their way", alone or people.get("transport"))]
    lines.append(Fact.of("who may touch the data", people.get("access")))
    header = ("setting", "the server sees", "a client sees", "protected from")
    return ReportSection("trust", "Who sees what", lines, [Grid("", header, rows)] if rows else [])


def unprotected_quantities(runs: Sequence[Run]) -> list[Fact]:
    """What leaves without the noise that the promise is about."""
    values = [run.summary.values for run in runs]
    published = dict.fromkeys(v["published_metrics"]["text"] for v in values if "published_metrics" in v)
    sizes = any(run.worst.get("public_size") for run in runs)
    clear = any(v["trust"] == "central" for v in values)
    counts = ["numbers of records of each silo are taken as public"] * sizes
    counts += ["the server is told each client's number of examples"] * clear
    alone = {v["engine"] for v in values} == {"local"}
    failed = sum(v["replies"][kind] for v in values for kind in ("failed", "invalid", "refused"))
    scale = any(run.worst["status"] == "heuristic" for run in runs)
    bad = [m for v in values if (m := v.get("malicious")) and m.get("unprotected")]
    return [
        Fact.of("metrics after each round", *published),
        Fact.of("counts of examples", *counts),
        Fact("replies", f"the server sees who answers, fails or refuses ({failed} times here)"),
        Fact("timing", "when a client answers is not hidden"),
        Fact.of("logs", "texts of failures stay in the run's folder, which is private" if alone else None),
        Fact.of("ledgers", "a heuristic's scale follows private values: keep its ledgers private" if scale else None),
        *[Fact("clients beyond the promise", f"malicious clients {m['clients']}: they went around it") for m in bad],
        Fact("this report", "its accuracies, curves and audits carry no noise: handing it on releases them"),
    ]


def _leaves(runs: Mapping[str, Sequence[Run]], people: Mapping[str, Any]) -> ReportSection:
    lines = unprotected_quantities([run for own in runs.values() for run in own]) if runs else []
    lines.append(Fact.of("is the model itself personal data", people.get("personal_data")))
    return ReportSection("leaves", "What else leaves", lines)


def _accuracy_lines(runs: Sequence[Run]) -> list[Fact]:
    rivals = {text for run in runs if (text := _rival(run))}
    majority = {f"{run.summary.values['majority']:.3f}" for run in runs if "majority" in run.summary.values}
    return [
        Fact.of("a model of public data alone", *sorted(rivals)),
        Fact.of("naming the most frequent class", *sorted(majority)),
    ]


def _rival(run: Run) -> str:
    metrics = run.summary.values.get("public_model", {}).get("metrics", {})
    return ", ".join(f"{name} {metrics[name]:.3f}" for name in ("accuracy", "rmse") if name in metrics)


def _attacked(audits: Sequence[Mapping[str, Any]], settings: list[str]) -> ReportSection:
    rows, lines, played = [], [], set[str]()
    for audit in audits:
        played.add(audit["game"])
        strength = f"{audit['replicates']} independent runs a side" if "replicates" in audit else None
        lines.append(Fact.of(f"{audit['game']}: how strongly", strength, audit.get("unit")))
        for label, bound in audit.get("together", {}).items():
            proven = f"epsilon of at least {bound['lower']:.2f}, where {bound['ceiling']:.2f} is the most that so many"
            lines.append(Fact(f"{label}: all attacks together prove", f"{proven} runs can prove"))
        lines += [
            Fact(f"{one['attack']}, {one['setting']}: not run", one["reason"]) for one in audit.get("refused", ())
        ]
        rows += [_verdict(audit["game"], result) for result in audit.get("results", ())]
    lines += [Fact(f"{name}: {what}") for name, what in ASKED.items() if name not in played]
    lines.append(Fact("attacks that nobody has thought of, and stronger ones"))
    header = ("game", "attack", "setting", "figure", "reached (95%)", "without the defence", "works there")
    tables = [Grid("", header, rows)] if rows else []
    return ReportSection(
        "attacked", "What was attacked, how strongly, and what was not", lines, tables, roc_charts(audits, settings)
    )


def _verdict(game: str, result: Mapping[str, Any]) -> list[str]:
    at = result.get("auc", result)  # as audits before Verdict wrote it
    reached = f"{at['point']:.3g} ({at['low']:.3g} to {at['high']:.3g})"
    bare, valid = result.get("without_defence"), {True: "yes", False: "no", None: ""}[result.get("valid")]
    details = ", ".join(f"{name} {value:.3g}" for name, value in result.get("details", {}).items())
    figure = "; ".join(filter(None, [result.get("figure", "AUC"), details]))
    where = [game, result["attack"], result["setting"], figure, reached]
    return [*where, "" if bare is None else f"{bare:.3g}", valid]


def _tuned(runs: Sequence[Run], people: Mapping[str, Any]) -> ReportSection:
    settings, seeds = len(by_setting(runs)), len({run.summary.values.get("seed") for run in runs})
    searched = settings > 1 or seeds > 1
    said = f"{settings} settings under {seeds} seeds on the same data; a choice among them by the figures below is not "
    derived = {v["derived_from"] for run in runs if (v := run.summary.values).get("derived_from")}
    stopping = [run.promises["validation clients"] for run in runs if "validation clients" in run.promises]
    lines = [
        Fact.of("compared here", f"{said}charged to any epsilon above" if searched else None),
        Fact.of("noise taken from other runs", *(f"from {one!r}: private, not charged" for one in sorted(derived))),
        Fact.of("charged for stopping early", *dict.fromkeys(epsilon_of(p) or protected(p) for p in stopping)),
        Fact.of("chosen before", people.get("tuning")),
    ]
    configs = {run.summary.setting: run.config for run in runs if run.config}
    rows = [[label, *(_plain(c.get(t, {}).get(k, "")) for t, k in CHOSEN)] for label, c in configs.items()]
    tables = [Grid("Chosen values", ("setting", *(k.replace("_", " ") for _, k in CHOSEN)), rows)] if rows else []
    return ReportSection("tuned", "What was tuned on what", lines, tables)


def _budget(found: Gathered) -> ReportSection:
    grids = []
    for name, book in found.sets.items():
        table = spent_of(book.ledger, found.rule)
        rows = [["" if cell == NOTHING else str(cell) for cell in row] for row in table.rows]
        grids.append(Grid(f"data set {name}", list(table.header), rows))
    declared = [b.ledger.budget for run in found.runs for b in run.books.values() if b.ledger.budget]
    texts = dict.fromkeys(", ".join(f"{k} {v:g}" for k, v in budget.items()) for budget in declared)
    lines = [Fact.of("budget of a run, declared before its first release", *texts)]
    lines += [] if grids else [Fact("ledger of a data set")]
    return ReportSection("budget", "What is left of each data set's budget", lines, grids)


def _policy(policy: Mapping[str, Any]) -> ReportSection:
    lines = [Fact.of(key, _plain(value), BINDS.get(key)) for key, value in policy.items()]
    return ReportSection("policy", "The policy in force", lines or [Fact("policy")])


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _origin(runs: Sequence[Run]) -> ReportSection:
    rows, heads = [], []
    for run in runs:
        v = run.summary.values
        versions = ", ".join(f"{name} {text}" for name, text in v["versions"].items())
        data = v.get("data", {})
        rows.append(
            [
                v["setting"],
                str(v.get("seed", "")),
                f"{v['engine']}, {v['rounds']} of {v['rounds_planned']} rounds, {v['clients']} clients",
                v["source"],
                f"{data['name']} {data['digest'][:16]}" if data.get("digest") else "",
                run.digests.get("config.toml", "")[:16],
                versions,
            ]
        )
        counts = run.worst["trust"] == "central"
        every = [run.books[p].values() for p in sorted(run.books, key=lambda party: (party == SERVER) != counts)]
        first = every[0] if every else {"party": "", "lines": "", "head": ""}
        more = f" and {len(every) - 1} more" if len(every) > 1 else ""
        heads.append([v["setting"], str(v.get("seed", "")), first["party"] + more, str(first["lines"]), first["head"]])
    header = ("setting", "seed", "run", "noise source", "data", "configuration", "versions")
    tables = [Grid("Runs", header, rows)] if rows else []
    tables += [Grid("Ledgers", ("setting", "seed", "party", "lines", "head"), heads)] if heads else []
    check = "fedveil report --verify report.json --ledgers FOLDER, on any machine that has the ledgers"
    return ReportSection("origin", "Where this comes from, and how to check it", [Fact("check", check)], tables)


def _approval(people: Mapping[str, Any]) -> ReportSection:
    lines = [
        Fact.of("approved by", people.get("approved_by")),
        Fact.of("on", people.get("approved_on")),
        Fact.of("intended use", people.get("intended_use")),
        Fact.of("published by", *people.get("curators", ())),
        Fact.of("why these parameters", people.get("justification")),
    ]
    return ReportSection("approval", "Who approved", lines)
