"""Tables of a study: ours beside the published figure, what there is, and which runs are needed."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedveil.tables import NOTHING, Table
from fedveil_lab.grid import Cell, Store
from fedveil_studies.frame.result import Published, Result
from fedveil_studies.frame.study import Study

FIRST = ("1",)  # of files that do not name a version of the arithmetic


def result_table(title: str, results: Sequence[Result], study: Study) -> Table:
    """One line a figure: ours, what it is over, the paper's, the difference, and the noise that was added."""
    several = len({r.figure for r in results}) > 1
    noisy, printed = any(r.noise for r in results), any(r.published for r in results)
    drawn = any(r.between_draws is not None and len(set(r.seeds)) > 1 for r in results)
    words = [study.described.row_name, "setting", *(["figure"] * several)]
    numbers = ["ours", "interval or deviation"] + ["± over draws"] * drawn
    numbers += ["paper", "ours - paper"] * printed + ["d", "noise/clip"] * noisy
    table, absent = title.partition(":")[0], {}
    for name, label in study.described.absent.items():
        column = [
            study.published.get((f"{table}-{name}", r.row, r.setting, r.figure)) for r in results
        ]
        if any(column):
            absent[f"paper, {label}"] = column
    rows = []
    for i, r in enumerate(results):
        cells = [
            r.row,
            study.settings.get(r.setting, r.setting),
            *([r.figure] * several),
            _number(r.value),
            _spread(r),
        ]
        cells += [_number(r.between_draws)] * drawn
        cells += [_printed(r.published), _number(r.difference, "+")] if printed else []
        cells += (
            [_short(r.noise.get("distance")), _short(r.noise.get("noise_to_clip"))] if noisy else []
        )
        cells += [_printed(figures[i]) for figures in absent.values()]
        rows.append(cells)
    numbers += absent
    return Table([*words, *numbers], rows, title, numbers, notes=result_notes(results, study))


def result_notes(results: Sequence[Result], study: Study) -> list[str]:
    """What intervals and deviations are over, what they promise, and what is missing."""
    spread = (r.over for r in results if r.low is not None or r.deviation is not None)
    notes = [f"interval or deviation over {over}" for over in dict.fromkeys(spread) if over]
    promises: dict[tuple[str, str], list[str]] = {}
    for r in results:
        if r.guarantee and r.setting != "vanilla":
            promises.setdefault((study.settings.get(r.setting, r.setting), r.guarantee), []).append(
                r.row
            )
    notes += [
        f"{setting}, {', '.join(dict.fromkeys(rows))}: {text}"
        for (setting, text), rows in promises.items()
    ]
    missing = dict.fromkeys(label for r in results for label in r.missing)
    if missing:
        shown = ", ".join(list(missing)[:4]) + (", ..." if len(missing) > 4 else "")
        notes.append(
            f"not finished: {len(missing)} runs ({shown}); the same command goes on with them"
        )
    for r in results:
        if r.undefined:
            place = f"{r.row}, {study.settings.get(r.setting, r.setting)}, {r.figure}"
            notes.append(f"{place}: no finite number in {r.undefined} runs, left out")
    versions = sorted({version for r in results if r.values for version in r.numerics or FIRST})
    if len(versions) > 1:
        notes.append(
            f"runs of several versions of the arithmetic ({', '.join(versions)}): sums differ in the last digits"
        )
    return notes


def studies_table(studies: Mapping[str, Study]) -> Table:
    """Every study that there is."""
    rows = [(name, one.described.title, one.described.source) for name, one in studies.items()]
    return Table(("study", "what it is", "source"), rows, wraps=("what it is", "source"))


def contents_tables(study: Study) -> list[Table]:
    """What a study holds: tables and figures, rows, readings and scales."""
    spec = study.described
    every = [("--table", n, c.title) for n, c in spec.tables.items()]
    every += [("--figure", n, c.title) for n, c in spec.figures.items()]
    titles = Table(("", "number", "what it shows"), every, wraps=("what it shows",))
    changed = [
        (n, r.label, ", ".join(f"{k} = {_plain(v)}" for k, v in r.set.items()))
        for n, r in spec.rows.items()
    ]
    rows = Table(("--row", "name", "what it sets"), changed, wraps=("what it sets",))
    scales = Table(
        ("--scale", "what it is"),
        [(n, s.what) for n, s in spec.scales.items()],
        wraps=("what it is",),
    )
    readings = [(n, r.what) for n, r in spec.readings.items()]
    return [
        titles,
        rows,
        Table(("--reading", "what it changes"), readings, wraps=("what it changes",)),
        scales,
    ]


def cells_table(cells: Sequence[Cell], store: Store) -> Table:
    """Cells with their state; the note sums them up, with how long such runs took so far."""
    states = {cell: store.state(cell) for cell in cells}
    done = [store.find(cell) for cell in cells if states[cell] == "done"]
    seconds = [float(one.summary.values["seconds"]["rounds"]) for one in done if one is not None]
    text = f"{len(cells)} runs, {len(done)} finished"
    if seconds:
        text += f"; these took {fmean(seconds):.0f} s each in the mean"
    return Table(
        ("run", "state", "folder"), [(c.label, states[c], c.folder) for c in cells], notes=[text]
    )


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(
            [str(value.get("name", "")), *(f"{k} {v}" for k, v in value.items() if k != "name")]
        ).strip()
    return str(value)


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
