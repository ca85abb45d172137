"""What a comparison leaves behind: its summaries, with how well attacks succeeded on each setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedveil.errors import damaged
from fedveil.experiments.audit_folder import RESULT
from fedveil.experiments.ledgers import replace
from fedveil.experiments.settings import slug
from fedveil.experiments.summary import Summary

FILE = "comparison.json"
AUDIT = "audit"  # in the comparison's folder, or in a run's: where `fedveil audit FOLDER` writes


def keep(summaries: Sequence[Summary], folder: Path) -> list[Summary]:
    """Write a comparison's summaries, with what an audit in its folder found; returns them."""
    found = with_attacks(summaries, folder)
    replace(folder / FILE, (json.dumps([dict(s.values) for s in found], indent=2) + "\n").encode())
    return found


def with_attacks(summaries: Sequence[Summary], folder: Path) -> list[Summary]:
    """Summaries of the comparison in a folder with their "audits": of the comparison's own audit, else of a run's.

    "audited" says that there was one, for a setting against which no attack counts.
    """
    together = _settings(folder / AUDIT / RESULT)
    found = []
    for summary in summaries:
        seed = int(summary.values["seed"])
        run = folder / run_name(summary.setting, seed, first=seed == summaries[0].values["seed"])
        alone = _settings(run / AUDIT / RESULT)
        own = together[summary.setting] if summary.setting in together else next(reversed(alone.values()), None)
        place = {"audits": [] if own is None else own, "audited": own is not None}
        found.append(Summary({**summary.values, **place}, summary.rows))
    return found


def run_name(label: str, seed: int, *, first: bool) -> str:
    """The folder of a comparison's run; repetitions of the first one are told apart by their seed."""
    return slug(label) if first else f"{slug(label)}-seed-{seed}"


def _settings(path: Path) -> dict[str, list[dict[str, Any]]]:
    """By setting, the undefended one first: attack, auc, low, high and runs of what counts; the strongest first.

    An attack counts against a setting if it works without the defence, or evidently against that setting.

    Raises
    ------
    FieldError
        If the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_bytes())
        found: dict[str, list[dict[str, Any]]] = {str(label): [] for label in values["settings"]}
        for r in values["results"]:
            auc = r["auc"]
            if not r["supposed"] and (r["valid_without_defence"] is not False or auc["low"] > 0.5):
                entry = {"attack": r["attack"], "auc": auc["point"], "low": auc["low"], "high": auc["high"]}
                found[r["setting"]].append({**entry, "runs": values["replicates"]})
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("audit", path, error, "delete it, and ask the audit again; finished runs stay") from error
    return {label: sorted(entries, key=lambda e: -float(e["auc"])) for label, entries in found.items()}
