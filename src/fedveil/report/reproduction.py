"""Tables of a reproduction: ours beside the published figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from fedveil.report.tables import NOTHING
from fedveil.reproduce.cells import Runs
from fedveil.reproduce.measure import Published, Result
from fedveil.reproduce.progress import Pace, duration
from fedveil.reproduce.study import Progressed, Selection, Study, cells_of

WORDS = ("rule", "setting", "figure")  # columns


def result_table(title: str, results: Sequence[Result], settings: Mapping[str, str]) -> Table:
    """One line a figure: ours, what it is over, the paper's, the difference, and the noise that was added."""
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False)
    header, rows = _lines(results, settings)
    for name in header:
        table.add_column(name, no_wrap=True, justify="left" if name in WORDS else "right")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(title: str, results: Sequence[Result], settings: Mapping[str, str]) -> list[str]:
    """The same in Markdown, with its notes."""
    header, rows = _lines(results, settings)
    rule = ["---" if name in WORDS else "---:" for name in header]
    lines = [f"## {title}", "", *(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)), ""]
    return [*lines, *(f"* {note}" for note in result_notes(results, settings)), ""]


def _lines(results: Sequence[Result], settings: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    several = len({r.figure for r in results}) > 1
    noisy, printed = any(r.noise for r in results), any(r.published for r in results)
    drawn = any(r.between_draws is not None and len(set(r.seeds)) > 1 for r in results)
    header = ["rule", "setting", *(["figure"] * several), "ours", "interval or deviation"]
    header += ["± over draws"] * drawn
    header += ["paper", "ours - paper"] * printed + ["d", "noise/clip"] * noisy
    rows = []
    for r in results:
        cells = [r.row, settings.get(r.setting, r.setting), *([r.figure] * several), _number(r.value), _spread(r)]
        cells += [_number(r.between_draws)] * drawn
        cells += [_printed(r.published), _number(r.difference, "+")] if printed else []
        cells += [_short(r.noise.get("distance")), _short(r.noise.get("noise_to_clip"))] if noisy else []
        rows.append(cells)
    return header, rows


def result_notes(results: Sequence[Result], settings: Mapping[str, str]) -> list[str]:
    """What intervals and deviations are over, what they promise, and what is missing."""
    spread = (r.over for r in results if r.low is not None or r.deviation is not None)
    found = [f"interval or deviation over {over}" for over in dict.fromkeys(spread) if over]
    promises: dict[tuple[str, str], list[str]] = {}
    for r in results:
        if r.guarantee and r.setting != "vanilla":
            promises.setdefault((settings.get(r.setting, r.setting), r.guarantee), []).append(r.row)
    found += [f"{setting}, {', '.join(dict.fromkeys(rows))}: {text}" for (setting, text), rows in promises.items()]
    missing = dict.fromkeys(label for r in results for label in r.missing)
    if missing:
        shown = ", ".join(list(missing)[:4]) + (", ..." if len(missing) > 4 else "")
        found.append(f"not finished: {len(missing)} runs ({shown}); the same command goes on with them")
    found += [
        f"{r.row}, {settings.get(r.setting, r.setting)}, {r.figure}: no finite number in {r.undefined} runs, left out"
        for r in results
        if r.undefined
    ]
    return found


def contents_table(study: Study) -> Table:
    """What there is to reproduce."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "number", "what it shows"):
        table.add_column(name)
    for kind, known in (("--table", study.tables), ("--figure", study.figures)):
        for number, title in known.items():
            table.add_row(kind, number, title)
    return table


def cells_table(study: Study, selection: Selection, runs: Runs, done: Progressed, jobs: int = 1) -> tuple[Table, str]:
    """The cells of a selection with their state, and a line that sums them up: their time with so many at once."""
    cells = cells_of(study, selection)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("run", "state", "folder"):
        table.add_column(name, no_wrap=True)
    pace = Pace()
    for outcome in done.finished.values():
        pace.add(outcome.cell, float(outcome.summary.values["seconds"]["rounds"]))
    for cell in cells:
        table.add_row(cell.label, runs.state(cell), cell.folder)
    left = {cell: runs.share_left(cell) for cell in cells if runs.state(cell) != "done"}
    seconds = pace.seconds(left) if left else None
    text = f"{len(cells)} runs, {len(cells) - len(left)} finished"
    if seconds is not None:
        text += f"; the others need about {duration(seconds / min(jobs, len(left)))}"
    return table, text


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return NOTHING
    if abs(value) >= 1e4:
        return f"{value:{sign}.2e}"
    return f"{value:{sign}.2f}" if abs(value) >= 10 else f"{value:{sign}.3f}"


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def _spread(result: Result) -> str:
    if result.low is not None and result.high is not None:
        return f"{_number(result.low)} to {_number(result.high)}"
    return NOTHING if result.deviation is None else f"±{_number(result.deviation)}"


def _printed(published: Published | None) -> str:
    if published is None:
        return NOTHING
    if published.low is not None and published.high is not None:
        return f"{_number(published.value)} ({_number(published.low)} to {_number(published.high)})"
    spread = "" if published.deviation is None else f" ±{_number(published.deviation)}"
    return f"{_number(published.value)}{spread}"
