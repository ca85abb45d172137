"""Tables of a study: our figures beside the published ones, its contents, and the needed runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from fedveil.tables import NOTHING, Table, shown
from fedveil_lab.grid import Cell, Store
from fedveil_studies.frame.result import Published, Result
from fedveil_studies.frame.study import Study

FIRST = ("1",)  # of files that do not name a version of the arithmetic


def result_table(title: str, results: Sequence[Result], study: Study) -> Table:
    """Make a table with a line per figure: ours, its interval, the paper's, the difference, and the added noise."""
    columns = defaultdict[str, list[str]](list)
    filled = {study.described.row_name, "setting", "ours", "interval or deviation"}
    table = title.partition(":")[0]
    for r in results:
        columns[study.described.row_name].append(r.row)
        columns["setting"].append(study.settings.get(r.setting, r.setting))
        columns["figure"].append(r.figure)
        columns["ours"].append(_number(r.value))
        columns["interval or deviation"].append(_spread(r))
        columns["± over draws"].append(_number(r.between_draws))
        columns["paper"].append(_printed(r.published))
        columns["ours - paper"].append(_number(r.difference, "+"))
        columns["d"].append(shown(r.noise.get("distance"), ".3g"))
        columns["noise/clip"].append(shown(r.noise.get("noise_to_clip"), ".3g"))
        if r.figure != results[0].figure:
            filled.add("figure")
        if r.between_draws is not None and len(set(r.seeds)) > 1:
            filled.add("± over draws")
        if r.published:
            filled.update(("paper", "ours - paper"))
        if r.noise:
            filled.update(("d", "noise/clip"))
        for name, label in study.described.absent.items():
            other = study.published.get((f"{table}-{name}", r.row, r.setting, r.figure))
            columns[f"paper, {label}"].append(_printed(other))
            if other:
                filled.add(f"paper, {label}")
    for name in columns.keys() - filled:
        del columns[name]
    words = (study.described.row_name, "setting", "figure")
    numbers = [name for name in columns if name not in words]
    rows = list(zip(*columns.values(), strict=True))
    return Table(list(columns), rows, title, numbers, notes=result_notes(results, study))


def versions_of(results: Iterable[Result]) -> list[str]:
    """List the versions of the arithmetic behind figures."""
    versions = set[str]()
    for result in results:
        if result.values:
            versions.update(result.numerics or FIRST)
    return sorted(versions)


def result_notes(results: Sequence[Result], study: Study) -> list[str]:
    """Write what intervals and deviations are over, what the runs promise, and what is missing."""
    over: dict[str, None] = {}
    promises: dict[tuple[str, str], dict[str, None]] = {}
    missing: dict[str, None] = {}
    undefined = []
    for r in results:
        setting = study.settings.get(r.setting, r.setting)
        if r.over and (r.low is not None or r.deviation is not None):
            over[f"interval or deviation over {r.over}"] = None
        if r.guarantee and r.setting != "vanilla":
            promises.setdefault((setting, r.guarantee), {})[r.row] = None
        missing |= dict.fromkeys(r.missing)
        if r.undefined:
            place = f"{r.row}, {setting}, {r.figure}"
            undefined.append(f"{place}: no finite number in {r.undefined} runs, left out")
    notes = list(over)
    for (setting, text), rows in promises.items():
        notes.append(f"{setting}, {', '.join(rows)}: {text}")
    if missing:
        named = list(missing)[:4]
        if len(missing) > 4:
            named.append("...")
        notes.append(
            f"not finished: {len(missing)} runs ({', '.join(named)}); the same command goes on with them"
        )
    notes += undefined
    versions = versions_of(results)
    if len(versions) > 1:
        notes.append(
            f"runs of several versions of the arithmetic ({', '.join(versions)}): sums differ in the last digits"
        )
    return notes


def studies_table(studies: Mapping[str, Study]) -> Table:
    """Make a table of all studies."""
    rows = [(name, one.described.title, one.described.source) for name, one in studies.items()]
    return Table(("study", "what it is", "source"), rows, wraps=("what it is", "source"))


def contents_tables(study: Study) -> list[Table]:
    """Make tables of a study's contents: tables and figures, rows, readings and scales."""
    spec = study.described
    every = []
    for number, contents in spec.tables.items():
        every.append(("--table", number, contents.title))
    for number, title in study.figures.items():
        every.append(("--figure", number, title))
    titles = Table(("", "number", "what it shows"), every, wraps=("what it shows",))
    changed = []
    for name, row in spec.rows.items():
        keys = [f"{key} = {_plain(value)}" for key, value in row.set.items()]
        changed.append((name, row.label, ", ".join(keys)))
    rows = Table(("--row", "name", "what it sets"), changed, wraps=("what it sets",))
    changes = [(name, reading.what) for name, reading in spec.readings.items()]
    readings = Table(("--reading", "what it changes"), changes, wraps=("what it changes",))
    sizes = [(name, scale.what) for name, scale in spec.scales.items()]
    scales = Table(("--scale", "what it is"), sizes, wraps=("what it is",))
    return [titles, rows, readings, scales]


def cells_table(cells: Sequence[Cell], store: Store) -> Table:
    """Make a table of cells with their state; a note sums them up, with the time that such runs took."""
    rows, seconds, finished = [], list[float](), 0
    for cell in cells:
        state = store.state(cell)
        rows.append((cell.label, state, cell.folder))
        if state != "done":
            continue
        finished += 1
        outcome = store.find(cell)
        if outcome is not None:
            seconds.append(float(outcome.summary.values["seconds"]["rounds"]))
    text = f"{len(cells)} runs, {finished} finished"
    if seconds:
        text += f"; these took {fmean(seconds):.0f} s each in the mean"
    return Table(("run", "state", "folder"), rows, notes=[text])


def cost(cells: Sequence[Cell], store: Store, recorded: Mapping[str, float | None]) -> list[str]:
    """Say how many runs are to be made, and the core-hours that such runs took; nothing if none is to be made.

    Parameters
    ----------
    cells : sequence of Cell
        Runs that are needed, each once.
    store : Store
        Store that knows the finished ones.
    recorded : mapping of str to float or None
        Seconds of one core by a cell's key, as `Reproduction.seconds` gives them.
    """
    waiting, known = [], list[float]()
    for cell in cells:
        if store.find(cell) is not None:
            continue
        waiting.append(cell)
        seconds = recorded.get(cell.key)
        if seconds is not None:
            known.append(seconds)
    if not waiting:
        return []
    text = f"{len(waiting)} of {len(cells)} runs are to be made"
    if not known:
        return [f"{text}; how long such runs take is not recorded"]
    text += f": about {_hours(sum(known))}, by what such runs took on a shared machine"
    if len(known) < len(waiting):
        text += f"; of {len(waiting) - len(known)} of them no time is recorded"
    return [text]


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} core-minutes"
    return f"{seconds / 3600:.1f} core-hours"


def _plain(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    others = dict(value)
    words = [str(others.pop("name", ""))]
    for key, other in others.items():
        words.append(f"{key} {other}")
    return " ".join(words).strip()


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return NOTHING
    if abs(value) >= 1e4:
        return f"{value:{sign}.2e}"
    if abs(value) >= 10:
        return f"{value:{sign}.2f}"
    return f"{value:{sign}.3f}"


def _spread(result: Result) -> str:
    if result.low is not None and result.high is not None:
        return f"{_number(result.low)} to {_number(result.high)}"
    if result.deviation is None:
        return NOTHING
    return f"±{_number(result.deviation)}"


def _printed(published: Published | None) -> str:
    if published is None:
        return NOTHING
    if published.low is not None and published.high is not None:
        return f"{_number(published.value)} ({_number(published.low)} to {_number(published.high)})"
    if published.deviation is None:
        return _number(published.value)
    return f"{_number(published.value)} ±{_number(published.deviation)}"
