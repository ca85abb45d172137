"""Kinds of folders (run, comparison, audit, study, other), and refusals to write into the wrong kind."""

import shlex
from collections.abc import Collection
from pathlib import Path

from fedveil.errors import FieldError

CONFIG = "config.toml"
MODEL = "model.safetensors"
BEST = "best.safetensors"
RUN_ID = "checkpoint/run.json"
SPEC = "spec.json"
SERVERS_LEDGER = "ledger/server.jsonl"
CELLS = "cells"
RUN, COMPARISON, AUDIT, STUDY = "a run", "a comparison", "an audit", "a study"
_AGAIN = {
    RUN: "fedveil run {} --resume",
    COMPARISON: "fedveil compare {} --resume",
    AUDIT: "the fedveil audit command that began it",
    STUDY: "fedveil reproduce STUDY --out {}",
}
_OF_A_RUN = ("checkpoint", "ledger", "metrics.jsonl", "summary.json")
# Files and folders that may exist before config.toml or spec.json is written.
_BEFORE_A_RUN = {CELLS, "ledger", "checkpoint", "checkpoint/.run.json.part", RUN_ID}


def kind_of(path: Path) -> str:
    """Return the kind of a folder: `RUN`, `COMPARISON`, `AUDIT`, `STUDY`, or "" for any other folder."""
    if (path / SPEC).is_file():
        return AUDIT
    if (path / CONFIG).is_file():
        return RUN if _part_of_a_run(path) else COMPARISON
    if (path / CELLS).is_dir():
        return STUDY
    return ""


def unused(path: Path) -> bool:
    """Whether a folder is missing, empty, or has only the files of a run that was killed at its start."""
    for file in path.rglob("*"):
        inner = file.relative_to(path)
        hidden = inner.parts[0].startswith(".")
        if not hidden and inner.as_posix() not in _BEFORE_A_RUN:
            return False
    return True


def refuse_used(path: Path) -> None:
    """Refuse to begin in a folder that is in use.

    Raises
    ------
    FieldError
        If the path is a file, or a folder that is not empty.
    """
    _refuse_file(path)
    if unused(path):
        return
    kind = kind_of(path)
    if kind:
        accepted = f"holds {kind} already; go on with it by {_again(path)}, or give another --out"
    elif not _part_of_a_run(path):
        accepted = "is not empty; give another --out"
    elif (path / SERVERS_LEDGER).exists() and not (path / RUN_ID).exists():
        accepted = (
            "holds the run of a server already; give another folder, or go on in this one with "
        )
        accepted += f"ServerFolder({str(path)!r}, resume=True)"
    else:
        accepted = f"holds a run that has lost its {CONFIG}; {remedy(path)}"
    raise FieldError("--out", str(path), accepted)


def refuse_others(path: Path, wanted: str) -> None:
    """Refuse to write into a folder of another kind than `wanted`.

    Raises
    ------
    FieldError
        If the path is a file, or a folder of another kind.
    """
    _refuse_file(path)
    if unused(path):
        return
    kind = kind_of(path)
    if kind != wanted:
        raise FieldError(
            "--out", str(path), f"holds {kind or 'other files'}, not {wanted}; give another --out"
        )


def refuse_strangers(path: Path, own: Collection[str]) -> None:
    """Refuse to write into a folder with foreign files.

    Parameters
    ----------
    path : Path
        Folder to write to.
    own : collection of str
        Names of the files to be written; older files of these names may be there.

    Raises
    ------
    FieldError
        If the path is a file, or a folder with other files in it.
    """
    _refuse_file(path)
    if not path.is_dir():
        return
    for file in sorted(path.iterdir()):
        if file.name not in own and not file.name.startswith("."):
            kind = kind_of(path) or f"other files, such as {file.name}"
            raise FieldError("--out", str(path), f"holds {kind}; give another --out")


def require_begun(path: Path, wanted: str) -> None:
    """Refuse to continue in a folder without a begun run (or other work) of the wanted kind.

    Raises
    ------
    FieldError
        If there is none; the text has the folder's kind, and the command that continues it.
    """
    kind = kind_of(path)
    if not kind:
        noun = wanted.partition(" ")[2]
        raise FieldError(
            "--resume", str(path), f"holds no {noun} to go on with; leave --resume out"
        )
    if kind != wanted:
        raise FieldError(
            "--resume", str(path), f"holds {kind}, not {wanted}; go on with it by {_again(path)}"
        )


def remedy(path: Path) -> str:
    """Advise what to do about a damaged file in a folder."""
    kind = kind_of(path)
    if kind == COMPARISON:
        return "restore or correct it; finished runs are kept"
    if kind == AUDIT:
        return "restore it, or give another --out"
    if path.parent.name == CELLS:
        return "restore it, or move this cell's folder away: it is played again, and what it spent stays in its ledger"
    return "restore it, or run it again with another --out; this folder stays, as its ledger says what was spent"


def _refuse_file(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise FieldError("--out", str(path), "is a file; give the path of a folder")


def _part_of_a_run(path: Path) -> bool:
    for name in _OF_A_RUN:
        part = path / name
        if (
            part.exists() and not (part / CONFIG).exists()
        ):  # a folder with a configuration is a run of its own
            return True
    return False


def _again(path: Path) -> str:
    """Return the command that continues the work in a folder."""
    return _AGAIN[kind_of(path)].format(shlex.quote(str(path)))
