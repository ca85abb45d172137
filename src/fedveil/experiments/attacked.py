"""How well the attacks of an audit succeeded on a run, for who wants to draw it beside the run's accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError
from fedveil.experiments.audit_folder import RESULT

FOLDER = "audit"  # in a run's folder, where `fedveil audit RUN_DIR` writes


def attack_success(folder: Path | None) -> list[dict[str, Any]]:
    """The client inference attacks of a run's audit that work without the defence.

    Parameters
    ----------
    folder : Path or None
        Of the run.

    Returns
    -------
    list of dict
        attack, auc, low, high; the strongest first. Empty where there is no audit.

    Raises
    ------
    FieldError
        If the audit's file is damaged.
    """
    path = None if folder is None else folder / FOLDER / RESULT
    if path is None or not path.is_file():
        return []
    try:
        values = json.loads(path.read_bytes())
        *_, defended = values["settings"]
        found = [
            {"attack": r["attack"], "auc": r["auc"]["point"], "low": r["auc"]["low"], "high": r["auc"]["high"]}
            for r in values["results"]
            if r["setting"] == defended and (r["valid_without_defence"] is not False)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FieldError("audit", str(path), f"cannot be read ({error}); delete it, or audit again") from error
    return sorted(found, key=lambda r: -float(r["auc"]))
