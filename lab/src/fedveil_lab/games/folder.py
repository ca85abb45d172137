"""The folder of an audit: it holds one configuration, one game and one question."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError, damaged
from fedveil.files import AUDIT, CONFIG, SPEC, kind_of, remedy
from fedveil.reading import json_of
from fedveil_lab.config import Config
from fedveil_lab.config.loading import load
from fedveil_lab.runs.folder import differences

# More of these go on in the same folder, and what they find is kept there.
GROWING = frozenset({"attacks", "replicates", "clients"})
# Where it is played changes no bit, or is said by the store, which knows the device of each run.
PLACE = frozenset({"device", "workers"})


def differing(path: Path, spec: Mapping[str, Any], config: Config) -> Sequence[str]:
    """List what differs between the audit in a folder and this one; empty if there is none, or the same one.

    Parameters
    ----------
    path : Path
        Folder of the audit.
    spec : mapping
        Name of the game, and its question.
    config : Config
        Attacked configuration.

    Raises
    ------
    FieldError
        If a file of the audit is damaged.
    """
    if kind_of(path) != AUDIT:
        return []
    try:
        stored = json_of((path / SPEC).read_bytes())
    except (OSError, ValueError) as error:
        raise damaged("--out", path / SPEC, error, remedy(path)) from error
    asked = json.loads(json.dumps(spec))
    if not isinstance(stored, Mapping) or stored.get("game") != asked["game"]:
        return ["--game"]
    if (path / CONFIG).is_file():
        configured = _configured(path, config)
    else:
        configured = []
    others = (name for name in differences(stored, asked) if name not in GROWING)
    return list(dict.fromkeys((*configured, *others)))


def _configured(path: Path, config: Config) -> list[str]:
    return [
        name for name in differences(load(path).to_dict(), config.to_dict()) if name not in PLACE
    ]


def refuse_another(path: Path, spec: Mapping[str, Any], config: Config) -> None:
    """Refuse a folder that holds a different audit.

    Raises
    ------
    FieldError
        If the folder holds a different audit; the message says what differs.
    """
    different = differing(path, spec, config)
    if different:
        accepted = f"holds an audit with another {', '.join(different)}: its figures would be lost; give another --out"
        raise FieldError("--out", str(path), accepted)
