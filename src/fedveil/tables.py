"""One table for every page: the same rows on a terminal, in Markdown and as CSV."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from fedveil.errors import cleaned

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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For a terminal; notes are printed apart. One that is too narrow gets the columns in several tables."""
        width = options.max_width
        broken = self._needed(range(len(self.header)), broken=False) > width
        for number, columns in enumerate(self._groups(width) if broken else [range(len(self.header))]):
            yield self._rendered(columns, width, titled=number == 0, broken=broken)

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

    def _rendered(self, columns: Sequence[int], width: int, titled: bool, broken: bool) -> RichTable:
        """Some of the columns; where even these do not fit, words are broken and nothing is left out."""
        listed = not any(self.header)
        style = None if listed else box.SIMPLE_HEAD
        title = Text(self.title) if self.title and titled else None
        table = RichTable(
            title=title, title_justify="left", title_style="", box=style, show_edge=False, padding=(0, 1, 0, 0)
        )
        table.show_header = not listed
        fits = (2 * self._least(0, broken) if listed else self._needed(columns, broken)) <= width
        for i in columns:
            name = self.header[i]
            keeps = fits and (i == 0 if listed else name not in self.wraps)
            shown = fill(name, self._least(i, broken)) if broken else name
            justify: JustifyMethod = "right" if name in self.numbers else "left"
            table.add_column(_of_terminal(shown), no_wrap=keeps, overflow="fold", justify=justify)
        for row in self.rows:
            table.add_row(*(_of_terminal(row[i]) for i in columns))
        return table

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


def _of_terminal(text: object) -> Text:
    """A cell, which can hold another party's words: nothing in it moves a terminal."""
    return Text(cleaned(text, len(str(text)), keep="\n"))


def write(folder: Path, name: str, tables: Sequence[Table], notes: Sequence[str] = (), first: str = "") -> list[str]:
    """Write tables as a Markdown page, with a text above and notes below, and as CSV, a file each; the files' names."""
    from fedveil.files import write_atomic  # with PyTorch, which a table alone does not need

    lines = [line for table in tables for line in replace(table, notes=()).markdown()]
    files = {f"{name}.md": "\n".join([*([first, ""] if first else []), *lines, *(f"* {note}" for note in notes), ""])}
    files |= {f"{name}-{i}.csv" if i > 1 else f"{name}.csv": table.csv() for i, table in enumerate(tables, 1)}
    for file, text in files.items():
        write_atomic(folder / file, text.encode())
    return list(files)
