"""Tables of a reproduction: ours beside the published figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from fedveil.report.tables import NOTHING
from fedveil.reproduce.measure import Published, Result
from fedveil.reproduce.progress import Pace, duration
from fedveil.reproduce.study import Progressed, Selection, Study, cells_of


def result_table(title: str, results: Sequence[Result], settings: Mapping[str, str]) -> Table:
    """One line a figure: ours, what it is over, the paper's, the difference, and the noise that was added."""
    several = len({r.figure for r in results}) > 1
    noisy = any(r.noise for r in results)
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("rule", no_wrap=True)
    table.add_column("setting", no_wrap=True)
    if several:
        table.add_column("figure", no_wrap=True)
    for name in ("ours", "interval or deviation", "paper", "difference", *(("d", "noise/clip") if noisy else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        cells = [result.row, settings.get(result.setting, result.setting)]
        cells += [result.figure] * several
        cells += [_number(result.value), _spread(result), _printed(result.published), _number(result.difference, "+")]
        if noisy:
            cells += [_short(result.noise.get("distance")), _short(result.noise.get("noise_to_clip"))]
        table.add_row(*cells)
    return table


def result_notes(results: Sequence[Result], settings: Mapping[str, str]) -> list[str]:
    """What intervals and deviations are over, what they promise, and what is missing."""
    found = [f"interval or deviation over {over}" for over in dict.fromkeys(r.over for r in results) if over]
    promises: dict[tuple[str, str], list[str]] = {}
    for r in results:
        if r.guarantee and r.setting != "vanilla":
            promises.setdefault((settings.get(r.setting, r.setting), r.guarantee), []).append(r.row)
    found += [f"{setting}, {', '.join(dict.fromkeys(rows))}: {text}" for (setting, text), rows in promises.items()]
    missing = dict.fromkeys(label for r in results for label in r.missing)
    if missing:
        shown = ", ".join(list(missing)[:4]) + (", ..." if len(missing) > 4 else "")
        found.append(f"not finished: {len(missing)} runs ({shown}); the same command goes on with them")
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


def cells_table(study: Study, selection: Selection, states: Mapping[str, str], done: Progressed) -> tuple[Table, str]:
    """The cells of a selection with their state, and a line that sums them up."""
    cells = cells_of(study, selection)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("run", "state", "folder"):
        table.add_column(name, no_wrap=True)
    pace = Pace()
    for outcome in done.finished.values():
        pace.add(outcome.cell, float(outcome.summary.values["seconds"]["rounds"]))
    for cell in cells:
        table.add_row(cell.label, states[cell.key], cell.folder)
    left = [cell for cell in cells if states[cell.key] != "done"]
    seconds = pace.seconds(left) if left else None
    text = f"{len(cells)} runs, {len(cells) - len(left)} finished"
    return table, text + ("" if seconds is None else f"; the others need about {duration(seconds)}")


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return NOTHING
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
