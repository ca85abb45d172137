"""Tables with the same rows on a terminal, in Markdown and as CSV."""

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
WRAPPED = 24  # least width, in letters, of a column of sentences
T = TypeVar("T")


def grouped_by(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Group items by key; the groups keep the order in which their keys first occur."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def shown(value: float | None, form: str) -> str:
    """Format a number by a Python format; None becomes `NOTHING`."""
    if value is None:
        return NOTHING
    return format(value, form)


@dataclass(frozen=True)
class Table:
    """Table of texts and numbers, for a terminal, Markdown, CSV and JSON.

    Attributes
    ----------
    header : sequence of str
        Names of the columns. A list of facts has no header: all its names are empty.
    rows : sequence of sequence
        Rows; each has one text or number for each column.
    title : str
        Title above the table.
    numbers : sequence of str
        Names of the right-aligned columns.
    wraps : sequence of str
        Columns whose texts may be broken into lines on a narrow terminal. In a list of facts all may.
    notes : sequence of str
        Remarks below the table.
    data : object, optional
        Values for JSON in place of the texts.
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
        """Make a list of facts: a name and a text on each line."""
        return cls(("", ""), rows, data=data)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], **rest: Any) -> "Table":
        """Make a table from rows that are mappings from column to value.

        Columns are in the order of their first occurrence; a missing value becomes `NOTHING`.
        """
        seen: dict[str, None] = {}
        for row in rows:
            seen |= dict.fromkeys(row)
        header = list(seen)
        cells = []
        for row in rows:
            filled = {**dict.fromkeys(header, NOTHING), **row}
            cells.append(list(filled.values()))
        return cls(header, cells, **rest)

    @property
    def listed(self) -> bool:
        """Whether this is a list of facts, without a header."""
        return not any(self.header)

    def only(self, *names: str) -> "Table":
        """Return a table with only some of the columns.

        Only a table with the first column of numbers keeps the title, so that several parts have one title.
        """
        indices = [list(self.header).index(name) for name in names]
        rows = [_picked(row, indices) for row in self.rows]
        titled = set(names) & set(self.numbers[:1])
        return replace(
            self,
            header=names,
            rows=rows,
            title=self.title if titled else "",
        )

    def text(self, width: int, rule: str = "─") -> str:
        """Format for a terminal, without notes; a table that is too wide is split into several, one below the other.

        Parameters
        ----------
        width : int
            Longest line, in columns of the terminal.
        rule : str
            Character of the line below the header.
        """
        every = list(range(len(self.header)))
        broken = self._needed(every, broken=False) > width
        groups = self._groups(width) if broken else [every]
        lines = broken_lines(self.title, width) if self.title else []
        for columns in groups:
            lines += self._drawn(columns, width, broken, rule)
        return "\n".join(line.rstrip() for line in lines)

    def _groups(self, width: int) -> list[list[int]]:
        """Split the columns into groups that fit; each begins with the columns that distinguish the rows."""
        every = list(range(len(self.header)))
        if self.listed:
            return [every]
        first_cells = {str(row[0]) for row in self.rows}
        keys = every[:1] if len(first_cells) == len(self.rows) else every[:2]
        groups = [list(keys)]
        for column in every[len(keys) :]:
            wider = [*groups[-1], column]
            if groups[-1] != keys and self._needed(wider, broken=True) > width:
                groups.append(list(keys))
            groups[-1].append(column)
        return groups

    def _needed(self, columns: Sequence[int], broken: bool) -> int:
        """Return the width that these columns need next to each other, with two spaces between and one at the end."""
        letters_of_cells = sum(self._least(column, broken) for column in columns)
        return letters_of_cells + 2 * len(columns) - 1

    def _least(self, column: int, broken: bool) -> int:
        """Return the width that a column needs; with `broken` its name may be broken between words."""
        name = self.header[column]
        longest = longest_word = 0
        for row in self.rows:
            text = str(row[column])
            longest = max(longest, _longest(text.split("\n")))
            longest_word = max(longest_word, _longest(text.split()))
        if name in self.wraps:
            longest = min(longest, max(WRAPPED, longest_word))
        return max(longest, _longest(name.split() if broken else [name]))

    def _drawn(
        self,
        columns: Sequence[int],
        width: int,
        broken: bool,
        rule: str,
    ) -> list[str]:
        """Format some of the columns; if they do not fit, words are broken, and nothing is left out."""
        names = [self.header[column] for column in columns]
        if broken:
            leasts = [self._least(column, broken) for column in columns]
            names = list(map(fill, names, leasts))
        head = list(map(_of_terminal, names))
        rows = [list(map(_of_terminal, _picked(row, columns))) for row in self.rows]
        gap = 1 if self.listed else 2
        room = width - gap * (len(columns) - 1) - 1
        natural = _widest_lines([head, *rows])
        widths = narrowed(natural, self._keeps(columns, width, broken), room)
        right = [self.header[column] in self.numbers for column in columns]
        lines = []
        if not self.listed:
            lines = _row_lines(head, widths, right, gap)
            lines.append(rule * (sum(widths) + gap * len(widths) - 1))
        for row in rows:
            lines += _row_lines(row, widths, right, gap)
        return lines

    def _keeps(self, columns: Sequence[int], width: int, broken: bool) -> list[bool]:
        """Return which columns keep their width while others can still be narrowed."""
        if self.listed:
            fits = 2 * self._least(0, broken) <= width
            return [fits and column == 0 for column in columns]
        fits = self._needed(columns, broken) <= width
        return [fits and self.header[column] not in self.wraps for column in columns]

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table, with the title as a heading and the notes as a list."""
        rule = ["---:" if name in self.numbers else "---" for name in self.header]
        lines = [f"## {self.title}", ""] if self.title else []
        for cells in (self.header, rule, *self.rows):
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines.append("")
        if self.notes:
            lines += [*map(_bullet, self.notes), ""]
        return lines

    def values(self) -> Any:
        """Return the values for JSON; by default a mapping of facts, or one mapping for each row."""
        if self.data is not None:
            return self.data
        if self.listed:
            return {str(name): str(text) for name, text in self.rows if name}
        rows = []
        for row in self.rows:
            rows.append(dict(zip(self.header, map(str, row), strict=True)))
        return rows

    def csv(self) -> str:
        """Return the rows as CSV, below a header if the columns have names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self.listed:
            writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue()


def _picked(row: Sequence[object], indices: Iterable[int]) -> list[object]:
    return [row[index] for index in indices]


def _bullet(note: str) -> str:
    return f"* {note}"


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _widest_lines(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest line in each column, in terminal columns."""
    widths = [0] * len(rows[0])
    for row in rows:
        for column, text in enumerate(row):
            widths[column] = max(widths[column], *map(letters, text.split("\n")))
    return widths


def _row_lines(
    cells: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool],
    gap: int,
) -> list[str]:
    """Format one row of a table, on as many lines as its tallest cell needs."""
    columns = []
    for text, width, flush_right in zip(cells, widths, right, strict=True):
        columns.append([padded(line, width, flush_right) for line in broken_lines(text, width)])
    height = max(map(len, columns))
    for column, width in zip(columns, widths, strict=True):
        column += [" " * width] * (height - len(column))
    return [(" " * gap).join(line) for line in zip(*columns, strict=True)]


def _of_terminal(text: object) -> str:
    """Escape control characters in a cell, which may hold another party's text."""
    return cleaned(text, len(str(text)), keep="\n")


def letters(text: str) -> int:
    """Return the width of a text in terminal columns.

    East Asian letters take two columns, combining marks none.
    """
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_letter, text))


def _columns_of_letter(letter: str) -> int:
    if combining(letter):
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1


def padded(text: str, width: int, right: bool) -> str:
    """Pad a text with spaces to a width; with `right` before the text, else after it."""
    blanks = " " * (width - letters(text))
    return blanks + text if right else text + blanks


def narrowed(widths: Sequence[int], keeps: Sequence[bool], room: int) -> list[int]:
    """Narrow columns until they fit into the available width.

    The widest column is narrowed first. A column in `keeps` is narrowed only if no other can be.
    """
    now = list(widths)
    while sum(now) > max(room, len(now)):
        wide = [column for column, size in enumerate(now) if size > 1]
        giving = [column for column in wide if not keeps[column]]
        widest = max(giving or wide, key=now.__getitem__)
        now[widest] -= 1
    return now


def broken_lines(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, between words if possible."""
    lines = []
    for paragraph in text.split("\n"):
        line, taken = "", 0
        for word in re.findall(r"\s*\S+\s*", paragraph) or [paragraph]:
            if line and taken + letters(word.rstrip()) > width:
                lines.append(line.rstrip())
                line, taken, word = "", 0, word.lstrip()
            for part in _pieces(word, width):
                if line and taken + letters(part.rstrip()) > width:
                    lines.append(line.rstrip())
                    line, taken = "", 0
                line += part
                taken += letters(part)
        lines.append(line.rstrip())
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """Split a word into parts of at most `width` columns."""
    if letters(word.rstrip()) <= width:
        return [word]
    parts, part = [], ""
    for letter in word:
        if part and letters(part + letter) > width and not letter.isspace():
            parts.append(part)
            part = ""
        part += letter
    return [*parts, part]


def write(
    folder: Path,
    name: str,
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    first: str = "",
) -> list[str]:
    """Write tables to files: one Markdown page, and a CSV file for each table.

    Parameters
    ----------
    folder : Path
        Folder of the files.
    name : str
        Name of the page without its ending; the second table's CSV file is ``NAME-2.csv``.
    tables : sequence of Table
        Tables in order; their own notes are left out.
    notes : sequence of str
        Remarks below the last table.
    first : str
        Text above the first table.

    Returns
    -------
    list of str
        Names of the files.
    """
    lines = [first, ""] if first else []
    files: dict[str, str] = {}
    for number, table in enumerate(tables, 1):
        lines += replace(table, notes=()).markdown()
        file = f"{name}-{number}.csv" if number > 1 else f"{name}.csv"
        files[file] = table.csv()
    lines += [*map(_bullet, notes), ""]
    files = {f"{name}.md": "\n".join(lines)} | files
    for file, text in files.items():
        write_atomic(folder / file, text.encode())
    return list(files)
