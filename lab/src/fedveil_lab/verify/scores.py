"""Read scores from CSV tables of other tools: a score and its world in each line, or one column of scores per world."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedveil.errors import FieldError, cleaned, require_choice
from fedveil_lab.verify.aims import Floats

FIELD = "--scores"
SCORES = ("score", "scores", "statistic", "value", "loss", "logit", "confidence")
WORLDS = (
    "world",
    "in",
    "member",
    "is_member",
    "ismember",
    "membership",
    "label",
    "included",
    "canary",
    "target",
)
INSIDE = ("in", "1", "1.0", "true", "yes", "member", "inside", "included", "d", "present")
OUTSIDE = (
    "out",
    "0",
    "0.0",
    "false",
    "no",
    "non-member",
    "nonmember",
    "outside",
    "excluded",
    "d'",
    "absent",
)
ANY = "id"
NAMED = {  # columns that name what a score is of, by kind of rows; `ANY` may name either
    "runs": ("run", "run_id", "seed", "trial"),
    "canaries": ("canary_id", "example_id", "record_id", "sample_id"),
    "records": (),
}
OTHER = {"runs": "canaries", "canaries": "runs", "records": ""}
FEWEST = 10  # scores of a world
LARGEST = 64_000_000  # bytes of a table
ACCEPTED = "needs the columns score,world (world: in or out, 1 or 0), or one column of scores each, named in and out"


def read_scores(path: Path, rows: str = "runs") -> tuple[Floats, Floats]:
    """Read the scores with the target and without from a CSV table.

    Parameters
    ----------
    path : path
        CSV file.
    rows : {"runs", "canaries", "records"}
        What one score belongs to. If a column names the runs or canaries, each name must occur once.

    Raises
    ------
    FieldError
        If a line cannot be read, or a run or canary occurs twice; if a column shows that the table is of the other
        kind; or if a world has too few scores.
    """
    require_choice("rows", rows, NAMED)
    if not path.is_file():
        raise FieldError(FIELD, str(path), "is no file")
    if path.stat().st_size > LARGEST:
        raise FieldError(
            FIELD, str(path), f"is larger than {LARGEST // 1_000_000} MB: take fewer scores"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FieldError(FIELD, str(path), f"is no text in UTF-8 ({error.reason})") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise FieldError(FIELD, str(path), f"is empty; {ACCEPTED}")
    separator = max(",;\t", key=lines[0].count)
    table = list(csv.reader(lines, delimiter=separator))
    header = [name.strip().lower() for name in table[0]]
    for name in (ANY, *NAMED[rows]):
        if name in header and rows != "records":
            _require_once(path, table[1:], header.index(name), name)
    _require_kind(path, table[1:], header, rows)
    if {"in", "out"} <= {*header}:
        inside = _beside(path, table[1:], header.index("in"))
        outside = _beside(path, table[1:], header.index("out"))
    else:
        inside, outside = _below(path, table[1:], header)
    if min(len(inside), len(outside)) < FEWEST:
        found = f"has {len(inside)} scores in and {len(outside)} out"
        raise FieldError(FIELD, str(path), f"{found}: both are needed, at least {FEWEST} of each")
    return inside, outside


def _below(
    path: Path, rows: Sequence[Sequence[str]], header: Sequence[str]
) -> tuple[Floats, Floats]:
    """Read tables with one score per line, and a word for its world."""
    score, world = _column(path, header, SCORES), _column(path, header, WORLDS)
    found: tuple[list[float], list[float]] = ([], [])
    for number, row in enumerate(rows, 2):
        if len(row) <= max(score, world):
            raise FieldError(
                FIELD,
                str(path),
                f"line {number} has {len(row)} columns, and its header {len(header)}",
            )
        word = row[world].strip().lower()
        if word not in INSIDE and word not in OUTSIDE:
            raise FieldError(
                FIELD,
                str(path),
                f"line {number} says {cleaned(word)!r} for its world, not in or out",
            )
        found[word in OUTSIDE].append(_number(path, number, row[score]))
    return np.array(found[0]), np.array(found[1])


def _require_once(path: Path, rows: Sequence[Sequence[str]], column: int, name: str) -> None:
    """Refuse a run or canary with two scores, as they are not independent."""
    lines: dict[str, int] = {}
    for number, row in enumerate(rows, 2):
        word = row[column].strip() if column < len(row) else ""
        if word in lines:
            accepted = f"line {number} has the {name} {cleaned(word)!r} of line {lines[word]}: each needs one of its own"
            raise FieldError(FIELD, str(path), accepted)
        if word:
            lines[word] = number


def _require_kind(
    path: Path, rows: Sequence[Sequence[str]], header: Sequence[str], kind: str
) -> None:
    """Refuse a table whose column names something else in each line than what its scores are said to be of."""
    other = OTHER[kind]
    if not other or any(name in header for name in NAMED[kind]):
        return
    for name in NAMED[other]:
        if name in header:
            column = header.index(name)
            words = [row[column].strip() for row in rows if column < len(row)]
            if len({*words}) == len(words) > 1:
                accepted = (
                    f"each line has a {name} of its own: these are {other}, so say --rows {other}"
                )
                raise FieldError(FIELD, str(path), accepted)


def _beside(path: Path, rows: Sequence[Sequence[str]], column: int) -> Floats:
    """Read one column of scores; it may be shorter than the other."""
    found = []
    for number, row in enumerate(rows, 2):
        if column < len(row) and row[column].strip():
            found.append(_number(path, number, row[column]))
    return np.array(found)


def _column(path: Path, header: Sequence[str], names: Sequence[str]) -> int:
    """Return the index of the only column with one of these names."""
    own = [i for i, name in enumerate(header) if name in names]
    if len(own) != 1:
        shown = ", ".join(cleaned(name) for name in header)
        raise FieldError(FIELD, str(path), f"has the columns {shown}; {ACCEPTED}")
    return own[0]


def _number(path: Path, line: int, word: str) -> float:
    """Read a score; `float` also reads nan and inf."""
    try:
        return float(word)
    except ValueError as error:
        raise FieldError(
            FIELD, str(path), f"line {line} holds {cleaned(word)!r}, which is no number"
        ) from error
