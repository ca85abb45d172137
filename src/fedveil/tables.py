"""One table for every page: the same rows on a terminal, in Markdown and as CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar
from unicodedata import combining, east_asian_width

from fedveil.errors import cleaned
from fedveil.files import write_atomic

NOTHING = "-"
WRAPPED = 24  # letters that a column of sentences needs at least
T = TypeVar("T")


def grouped_by(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Items under their keys, in the order in which each key first occurs."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def shown(value: float | None, form: str) -> str:
    """A number in a format of Python's, or `NOTHING` where there is none."""
    return NOTHING if value is None else format(value, form)


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns.

    Attributes
    ----------
    header : sequence of str
        Names of the columns; empty names for a list of facts, which has no header.
    rows : sequence of sequence
        One text or number a column.
    title : str
        Above it.
    numbers : sequence of str
        Columns whose texts are set flush right.
    wraps : sequence of str
        Columns that a narrow terminal may break into lines; all, for a list of facts.
    notes : sequence of str
        What has to be said below it.
    data : object, optional
        For JSON in place of the texts: numbers as numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    numbers: Sequence[str] = ()
    wraps: Sequence[str] = ()
    notes: Sequence[str] = ()
    data: Any = None

    @classmethod
    def facts(cls, rows: Sequence[tuple[str, str]], data: Any = None) -> "Table":
        """A name and what there is to say of it, line by line."""
        return cls(("", ""), rows, data=data)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], **rest: Any) -> "Table":
        """Rows by column, in the order in which columns first occur; `NOTHING` where a row lacks one."""
        header = list(dict.fromkeys(name for row in rows for name in row))
        return cls(header, [[row.get(name, NOTHING) for name in header] for row in rows], **rest)

    def only(self, *names: str) -> "Table":
        """Some of the columns; the title stands above the first of several such tables, with the first number."""
        at = [list(self.header).index(name) for name in names]
        title = self.title if set(names) & set(self.numbers[:1]) else ""
        return replace(self, header=names, rows=[[row[i] for i in at] for row in self.rows], title=title)

    def text(self, width: int, rule: str = "─") -> str:
        """For a terminal of so many columns; notes are printed apart. What is too narrow gets several tables.

        Parameters
        ----------
        width : int
            No line is longer.
        rule : str
            The letter that draws the line below the names of columns.
        """
        broken = self._needed(range(len(self.header)), broken=False) > width
        groups = self._groups(width) if broken else [list(range(len(self.header)))]
        lines = broken_lines(self.title, width) if self.title else []
        for columns in groups:
            lines += self._drawn(columns, width, broken, rule)
        return "\n".join(line.rstrip() for line in lines)

    def _groups(self, width: int) -> list[list[int]]:
        """Columns that fit beside one another; those that tell the rows apart stand in every group."""
        every = list(range(len(self.header)))
        if not any(self.header):
            return [every]
        keys = every[:1] if len({str(row[0]) for row in self.rows}) == len(self.rows) else every[:2]
        groups = [list(keys)]
        for i in every[len(keys) :]:
            if groups[-1] != keys and self._needed([*groups[-1], i], broken=True) > width:
                groups.append(list(keys))
            groups[-1].append(i)
        return groups

    def _needed(self, columns: Sequence[int], broken: bool) -> int:
        """Letters that columns need beside one another, with two between them and one behind."""
        return sum(self._least(i, broken) for i in columns) + 2 * len(columns) - 1

    def _least(self, column: int, broken: bool) -> int:
        """Letters that a column needs; its name may be broken between words."""
        name = self.header[column]
        words = name.split() if broken else [name]
        lines = [line for row in self.rows for line in str(row[column]).split("\n")]
        longest = max(map(len, lines), default=0)
        if name in self.wraps:
            longest = min(longest, max([WRAPPED, *(len(word) for line in lines for word in line.split())]))
        return max([longest, *map(len, words)])

    def _drawn(self, columns: Sequence[int], width: int, broken: bool, rule: str) -> list[str]:
        """Some of the columns; where even these do not fit, words are broken and nothing is left out."""
        listed = not any(self.header)
        gap = 1 if listed else 2
        names = [fill(self.header[i], self._least(i, broken)) if broken else self.header[i] for i in columns]
        rows = [[_of_terminal(row[i]) for i in columns] for row in self.rows]
        head = [_of_terminal(name) for name in names]
        fits = (2 * self._least(0, broken) if listed else self._needed(columns, broken)) <= width
        keeps = [fits and (i == 0 if listed else self.header[i] not in self.wraps) for i in columns]
        natural = [max(letters(line) for row in (head, *rows) for line in row[c].split("\n")) for c in range(len(head))]
        widths = narrowed(natural, keeps, width - gap * (len(columns) - 1) - 1)
        right = [self.header[i] in self.numbers for i in columns]

        def drawn(cells: Sequence[str]) -> list[str]:
            texts = [broken_lines(text, size) for text, size in zip(cells, widths, strict=True)]
            height = max(map(len, texts))
            filled = [[*text, *[""] * (height - len(text))] for text in texts]
            how = list(zip(widths, right, strict=True))
            return [
                (" " * gap).join(padded(part, *one) for part, one in zip(line, how, strict=True))
                for line in zip(*filled, strict=True)
            ]

        lines = [] if listed else [*drawn(head), rule * (sum(widths) + gap * len(widths) - 1)]
        return [*lines, *(line for row in rows for line in drawn(row))]

    def markdown(self) -> list[str]:
        """Lines, with the title as a heading and the notes as a list."""
        rule = ["---:" if name in self.numbers else "---" for name in self.header]
        lines = [f"## {self.title}", ""] if self.title else []
        lines += [f"| {' | '.join(map(str, cells))} |" for cells in (self.header, rule, *self.rows)]
        return [*lines, "", *(f"* {note}" for note in self.notes), *([""] if self.notes else [])]

    def values(self) -> Any:
        """For JSON: the data, else a mapping of facts, or one mapping a row."""
        if self.data is not None:
            return self.data
        if not any(self.header):
            return {str(name): str(text) for name, text in self.rows if name}
        return [dict(zip(self.header, map(str, row), strict=True)) for row in self.rows]

    def csv(self) -> str:
        """Header, where there is one, and rows."""
        text = io.StringIO()
        header = [self.header] if any(self.header) else []
        csv.writer(text, lineterminator="\n").writerows([*header, *self.rows])
        return text.getvalue()


def _of_terminal(text: object) -> str:
    """A cell, which can hold another party's words: nothing in it moves a terminal."""
    return cleaned(text, len(str(text)), keep="\n")


def letters(text: str) -> int:
    """Columns of a terminal that a text takes: letters of East Asian scripts take two, marks above others none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def padded(text: str, width: int, right: bool) -> str:
    """A text with blanks before or behind it."""
    blanks = " " * (width - letters(text))
    return blanks + text if right else text + blanks


def narrowed(widths: Sequence[int], keeps: Sequence[bool], room: int) -> list[int]:
    """Widths that fit into the room there is: the widest gives first, one that keeps its width only if all do."""
    now = list(widths)
    while sum(now) > max(room, len(now)):
        giving = [i for i, keep in enumerate(keeps) if not keep and now[i] > 1] or [
            i for i, size in enumerate(now) if size > 1
        ]
        widest = max(giving, key=lambda i: now[i])
        now[widest] -= 1
    return now


def broken_lines(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` columns, broken between words; a longer word is broken itself."""
    lines = []
    for whole in text.split("\n"):
        line, taken = "", 0
        for word in re.findall(r"\s*\S+\s*", whole) or [whole]:
            if line and taken + letters(word.rstrip()) > width:
                lines.append(line.rstrip())
                line, taken, word = "", 0, word.lstrip()
            for part in _pieces(word, width):
                if line and taken + letters(part.rstrip()) > width:
                    lines.append(line.rstrip())
                    line, taken = "", 0
                line, taken = line + part, taken + letters(part)
        lines.append(line.rstrip())
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """A word in parts that fit."""
    if letters(word.rstrip()) <= width:
        return [word]
    parts, part = [], ""
    for letter in word:
        if part and letters(part + letter) > width and not letter.isspace():
            parts.append(part)
            part = ""
        part += letter
    return [*parts, part]


def write(folder: Path, name: str, tables: Sequence[Table], notes: Sequence[str] = (), first: str = "") -> list[str]:
    """Write tables as a Markdown page, with a text above and notes below, and as CSV, a file each; the files' names."""
    lines = [line for table in tables for line in replace(table, notes=()).markdown()]
    files = {f"{name}.md": "\n".join([*([first, ""] if first else []), *lines, *(f"* {note}" for note in notes), ""])}
    files |= {f"{name}-{i}.csv" if i > 1 else f"{name}.csv": table.csv() for i, table in enumerate(tables, 1)}
    for file, text in files.items():
        write_atomic(folder / file, text.encode())
    return list(files)
