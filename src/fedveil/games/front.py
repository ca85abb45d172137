"""Accuracy against attacks: every setting of a comparison is attacked, and its summary says how well that went."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedveil.config import Config
from fedveil.errors import damaged, require_count
from fedveil.games.game import RESULT, play
from fedveil.games.participation import LEAST, ParticipationGame
from fedveil.grid.comparison import write
from fedveil.reading import json_of
from fedveil.runs import Progress, Summary

AUDIT = "audit"  # in the comparison's folder
ATTACKS = ("loss", "calibrated-loss", "likelihood-ratio", "own-update", "adaptive", "noise-size")
"""Every attack that needs no metrics, no colluders and no crafted updates: one set of replicates serves them all."""


def check_audit(config: Config, replicates: int) -> None:
    """Refuse what cannot be audited, before anything is run; 0 replicates are no audit.

    Raises
    ------
    FieldError
        For too few replicates or clients, or too few examples to put another client in one's place.
    """
    if not replicates:
        return
    require_count("--audit", replicates, least=LEAST)
    ParticipationGame(config, True, ATTACKS, replicates).check()


def attack_settings(config: Config, folder: Path, replicates: int, progress: Progress) -> None:
    """Attack every setting of the comparison in a folder; replicates that are there are not played again."""
    play(ParticipationGame(config, True, ATTACKS, replicates), folder / AUDIT, progress)


def with_attacks(summaries: Sequence[Summary], folder: Path) -> list[Summary]:
    """Summaries of the comparison in a folder with their "audits", in ``comparison.json`` too.

    "audited" says that there was an audit, for a setting against which no attack counts. An attack counts if it works
    without the defence, or evidently against that setting.
    """
    attacks = _attacks(folder / AUDIT / RESULT)
    attacked = []
    for summary in summaries:
        own = attacks.get(summary.setting)
        place = {"audits": own or [], "audited": own is not None}
        attacked.append(Summary({**summary.values, **place}, summary.rows))
    write(folder, [summary.values for summary in attacked])
    return attacked


def _attacks(path: Path) -> dict[str, list[dict[str, Any]]]:
    """By setting: attack, auc, low, high and runs of what counts, the strongest first.

    Raises
    ------
    FieldError
        If the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        values = json_of(path.read_bytes())
        attacks: dict[str, list[dict[str, Any]]] = {str(label): [] for label in values["settings"]}
        for r in values["results"]:
            auc = r["auc"]
            if not r["supposed"] and (r["valid_without_defence"] is not False or auc["low"] > 0.5):
                entry = {"attack": r["attack"], "auc": auc["point"], "low": auc["low"], "high": auc["high"]}
                attacks[r["setting"]].append({**entry, "runs": values["replicates"]})
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("audit", path, error, "delete it, and ask the audit again; finished runs stay") from error
    return {label: sorted(entries, key=lambda e: -float(e["auc"])) for label, entries in attacks.items()}
