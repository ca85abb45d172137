"""What a folder holds: a run, a comparison, an audit, a study, or somebody else's files."""

import shlex
from collections.abc import Collection
from pathlib import Path

from fedveil.errors import FieldError

CONFIG = "config.toml"
MODEL = "model.safetensors"
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
    """What a folder holds: `RUN`, `COMPARISON`, `AUDIT`, `STUDY`, or an empty text for none of these."""
    if (path / SPEC).is_file():
        return AUDIT
    if (path / CONFIG).is_file():
        return RUN if _part_of_a_run(path) else COMPARISON
    return STUDY if (path / CELLS).is_dir() else ""


def unused(path: Path) -> bool:
    """Whether there is no folder, or one that holds nothing, or no more than a run leaves that was killed early."""
    inner = (file.relative_to(path) for file in path.rglob("*"))
    return all(one.parts[0].startswith(".") or one.as_posix() in _BEFORE_A_RUN for one in inner)


def refuse_used(path: Path) -> None:
    """Refuse to begin where something already is.

    Raises
    ------
    FieldError
        If the path is a file or a folder that holds anything.
    """
    _refuse_file(path)
    if not unused(path):
        kind = kind_of(path)
        if not kind and _part_of_a_run(path):
            if (path / SERVERS_LEDGER).exists() and not (path / RUN_ID).exists():
                accepted = "holds the run of a server already; give another folder, or go on in this one with "
                accepted += f"ServerFolder({str(path)!r}, resume=True)"
                raise FieldError("--out", str(path), accepted)
            raise FieldError("--out", str(path), f"holds a run that has lost its {CONFIG}; {remedy(path)}")
        what = f"holds {kind} already; go on with it by {_again(path)}, or" if kind else "is not empty;"
        raise FieldError("--out", str(path), f"{what} give another --out")


def refuse_others(path: Path, wanted: str) -> None:
    """Refuse to write into what holds something else than is wanted there.

    Raises
    ------
    FieldError
        If the path is a file or a folder that holds something else.
    """
    _refuse_file(path)
    if not unused(path) and kind_of(path) != wanted:
        raise FieldError(
            "--out", str(path), f"holds {kind_of(path) or 'other files'}, not {wanted}; give another --out"
        )


def refuse_strangers(path: Path, own: Collection[str]) -> None:
    """Refuse to write beside files of another kind.

    Parameters
    ----------
    path : Path
        The folder.
    own : collection of str
        Names of the files that are written there; earlier ones of these names may be there.

    Raises
    ------
    FieldError
        If the path is a file, or a folder that holds anything else.
    """
    _refuse_file(path)
    found = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    strangers = [name for name in found if name not in own and not name.startswith(".")]
    if strangers:
        kind = kind_of(path) or f"other files, such as {strangers[0]}"
        raise FieldError("--out", str(path), f"holds {kind}; give another --out")


def require_begun(path: Path, wanted: str) -> None:
    """Refuse to go on where nothing of the kind was begun.

    Raises
    ------
    FieldError
        Naming what there is, and the command that goes on with it.
    """
    kind = kind_of(path)
    if not kind:
        raise FieldError(
            "--resume", str(path), f"holds no {wanted.partition(' ')[2]} to go on with; leave --resume out"
        )
    if kind != wanted:
        raise FieldError("--resume", str(path), f"holds {kind}, not {wanted}; go on with it by {_again(path)}")


def remedy(path: Path) -> str:
    """What to do about a damaged file in a folder."""
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
    return any((path / name).exists() and not (path / name / CONFIG).exists() for name in _OF_A_RUN)


def _again(path: Path) -> str:
    """The command that goes on with what a folder holds."""
    return _AGAIN[kind_of(path)].format(shlex.quote(str(path)))
