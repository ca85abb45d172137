"""A second study is cheap: a TOML, a CSV and under 60 lines of Python run through the whole frame."""

import json
from pathlib import Path

import pytest
import toy
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.registry import Registry
from fedveil_lab.config import load
from fedveil_lab.grid import Store
from fedveil_studies.frame import Choices, Reproduction, Selection, Study, checking, register
from fedveil_studies.frame.checking import check_study
from fedveil_studies.frame.described import Described, MeasureOf
from fedveil_studies.frame.tables import cost
from papers_kit import Told

FOLDER = Path(toy.__file__).parent
CELLS = 3  # the two rows share the run without noise, which knows no clip


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(checking, "STUDIES", Registry("STUDY", {}, group=checking.ENTRY_POINTS))
    register(toy.study)


def call(*arguments):
    result = CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_whole_way(tmp_path):
    assert len((FOLDER / "__init__.py").read_text().splitlines()) < 60
    assert "Does a smaller clip cost accuracy?" in call("--list")
    assert "C = .1" in call("toy", "--list")
    out = ["--out", str(tmp_path)]
    assert f"{CELLS} runs, 0 finished" in call("toy", "--table", "1", "--dry-run", *out)
    shown = call("toy", "--seeds", "3", *out)
    assert "0.700 ±0.020" in shown  # as printed
    assert "the length is that of the first hypothesis" in shown
    folder = tmp_path / "small"
    assert {path.name for path in folder.iterdir()} == {
        *("table-1.json", "table-2.json", "tables.md", "figure-1.png", "cells.json")
    }
    rows = json.loads((folder / "table-1.json").read_text())["rows"]
    assert [(row["row"], row["setting"], len(row["values"])) for row in rows] == [
        (row, setting, 3) for row in ("C = 1", "C = .1") for setting in ("vanilla", "global")
    ]
    claims = (tmp_path / "claims.md").read_text().splitlines()
    [noise, learns] = (
        next(line.split(" | ") for line in claims if f"| {c.name} (" in line)
        for c in toy.study.described.claims
    )
    assert noise[2] == "+0.125"  # (.9 - .7 + .8 - .75) / 2
    assert "3 seeds" in noise[4]
    assert (learns[2], learns[5]) == ("above .5", "**holds**")


def test_pages_of_several_stores_keep_the_cells_that_their_tables_name(tmp_path):
    for table, seed in (("1", "0"), ("2", "5")):
        call(
            "toy",
            "--table",
            table,
            "--seed",
            seed,
            "--out",
            str(tmp_path / table),
            "--into",
            str(tmp_path / "pages"),
        )
    lines = json.loads((tmp_path / "pages" / "small" / "cells.json").read_text())["cells"]
    tables = [
        json.loads((tmp_path / "pages" / "small" / f"table-{n}.json").read_text()) for n in "12"
    ]
    assert {line["folder"] for line in lines} == {
        c for table in tables for row in table["rows"] for c in row["cells"]
    }
    assert {line["seed"] for line in lines} == {0, 5}
    assert all(line["commit"] for line in lines)
    for _ in range(2):  # a table of which this store has no run yet
        nothing = ["--no-run", "--out", str(tmp_path / "1"), "--into", str(tmp_path / "new")]
        assert "written" in call("toy", "--table", "1", "--seed", "9", *nothing)


def changed(**tables):
    """The toy study with keys of its scale or of table 2 replaced."""
    described = toy.study.described
    scale = described.scales["small"].model_copy(update=tables.get("scale", {}))
    second = described.tables["2"].model_copy(update=tables.get("second", {}))
    study = Study(
        "toy",
        described.model_copy(
            update={
                "scales": {**described.scales, "small": scale},
                "tables": {**described.tables, "2": second},
            }
        ),
        toy.study.published,
    )
    for kind in ("measures", "curves", "probes", "judges"):
        getattr(study, kind).update(getattr(toy.study, kind))
    return study


def said_of(study, *tables):
    asked = Reproduction(study, Choices(workers=1))
    selection = Selection.of(asked, tables)
    return cost(asked.cells(selection), Store(None), asked.seconds(selection))


def test_core_hours_are_said_of_what_is_to_be_made_and_of_nothing_else(tmp_path):
    [unknown] = said_of(toy.study, "1")
    assert f"{CELLS} of {CELLS} runs" in unknown
    assert "core-" not in unknown
    [known] = said_of(changed(scale={"seconds": 1800.0}), "1")
    assert "1.5 core-hours" in known  # three runs of half an hour
    dear = changed(scale={"seconds": 60.0}, second={"seconds": {"small": 1200.0}})
    assert "3 core-minutes" in said_of(dear, "1")[0]
    assert "1.0 core-hours" in said_of(dear, "2")[0]  # runs with its probe are others
    assert "1.1 core-hours" in said_of(dear, "1", "2")[0]
    out = ["--table", "1", "--out", str(tmp_path)]
    shown = call("toy", *out)
    assert shown.index(f"{CELLS} of {CELLS} runs") < shown.index("run 1 of 3")
    assert "are to be made" not in call("toy", *out)


def test_an_extra_table_is_made_where_it_is_named_alone():
    asked = Reproduction(changed(second={"extra": True}), Choices(workers=1))
    assert Selection.of(asked).tables == ("1",)
    assert Selection.of(asked, ["2"]).tables == ("2",)


def test_a_figure_that_was_written_from_more_runs_stays_as_it_was(tmp_path):
    path = tmp_path / "pages" / "small" / "table-1.json"

    def rows_after(store, *chosen):
        into = ["--out", str(tmp_path / store), "--into", str(tmp_path / "pages")]
        call("toy", "--table", "1", *chosen, *into)
        return {
            (row["row"], row["setting"]): row["seeds"]
            for row in json.loads(path.read_text())["rows"]
        }

    whole = rows_after("a", "--seeds", "2")
    assert set(map(tuple, whole.values())) == {(0, 1)}
    before = path.read_text()
    assert rows_after("b", "--row", "wide") == whole  # another store, of one seed and row
    assert json.loads(path.read_text())["rows"] == json.loads(before)["rows"]
    anew = rows_after("c", "--row", "wide", "--seeds", "3")
    assert anew["C = 1", "global"] == [0, 1, 2]
    assert anew["C = .1", "global"] == [0, 1]


@pytest.mark.slow
def test_a_cell_that_only_a_figure_uses_keeps_its_line_and_the_commit_that_made_it(
    tmp_path, monkeypatch
):
    def lines_after(commit, store, *asked):
        monkeypatch.setattr("fedveil_lab.runs.provenance.commit", lambda: commit)
        call("toy", *asked, "--out", str(tmp_path / store), "--into", str(tmp_path / "pages"))
        return json.loads((tmp_path / "pages" / "small" / "cells.json").read_text())["cells"]

    first = lines_after("one", "a", "--figure", "1", "--seed", "3")
    assert {line["commit"] for line in first} == {"one"}
    both = lines_after("two", "b", "--table", "2")  # on seed 0, from a store that lacks the others
    assert {(line["seed"], line["commit"]) for line in both} == {(3, "one"), (0, "two")}
    assert len(both) == len(first) + 3
    assert (
        lines_after("three", "a", "--figure", "1", "--seed", "3", "--no-run") == both
    )  # shown again, nothing is made


@pytest.mark.slow
def test_interrupted_it_goes_on_and_another_scale_and_reading_are_other_runs(tmp_path):
    asked = Reproduction(toy.study, Choices(workers=1))
    cells = asked.cells(Selection.of(asked))
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).run(cells, Told(rounds=3))
    assert [Store(tmp_path).state(cell) for cell in cells][:3] == ["done", "begun", "to run"]
    told = Told()
    assert len(Store(tmp_path).run(cells, told, jobs=1).outcomes) == len(cells) == 2 * CELLS
    assert len(told.started) == len(cells) - 1
    for choices in (Choices(scale="paper"), Choices(readings=("quiet",))):
        other = Reproduction(toy.study, choices)
        states = {
            cell.label: Store(tmp_path).state(cell)
            for cell in other.cells(Selection.of(other, ["1"]))
        }
        begun_anew = [label for label, state in states.items() if state == "to run"]
        assert len(begun_anew) == (
            CELLS if choices.scale else CELLS - 1
        )  # the run without noise is the same
    assert "in tables.md" not in call(
        "toy", "--scale", "paper", "--table", "1", "--out", str(tmp_path)
    )
    assert {path.name for path in tmp_path.iterdir()} >= {"paper", "cells", "claims.md"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[rows.wide]", "[row.wide]"), "row"),
        (
            (
                'figures = { accuracy = { measure = "final"',
                'figure = { accuracy = { measure = "final"',
            ),
            "tables.1.parts",
        ),
        (('scenarios = ["digits"]\nprobe', 'scenarios = "digits"\nprobe'), "scenarios"),
        (("[scenarios]", "[scenarios"), "study.toml"),
    ],
)
def test_a_mistake_in_the_toml_is_named(change, said):
    text = (FOLDER / "study.toml").read_text()
    assert change[0] in text
    with pytest.raises(FieldError, match=said):
        Described.read(text.replace(*change), "toy")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('measure = "final"', 'measure = "finale"'), "did you mean 'final'"),
        (('probe = "length"', 'probe = "lenght"'), "did you mean 'length'"),
        (('scenarios = ["digits"]', 'scenarios = ["digit"]'), "did you mean 'digits'"),
        (('expect = "above half"', 'expect = "above hall"'), "did you mean 'above half'"),
        (('of = ["vanilla"', 'of = ["vanila"'), "did you mean 'vanilla'"),
        (('row = "wide"', 'row = "wise"'), "accepted: narrow, wide"),
        (('judged_on = ["small"]', 'judged_on = ["smal"]'), "did you mean 'small'"),
        (('judged_on = ["small"]', 'judged_on = ["small, loud"]'), "accepted: quiet"),
        (('beside = ["2"]', 'beside = ["9"]'), "notes: beside = '9'"),
        (('level = ["1", "accuracy"]', 'level = ["7", "accuracy"]'), "figures.1.level = '7'"),
        (('level = ["1", "accuracy"]', 'level = ["1", "acuracy"]'), "did you mean 'accuracy'"),
        (('group = "metrics"', 'group = "metric"'), "did you mean 'metrics'"),
        (('group = "metrics"', 'goup = "metrics"'), "goup"),
        (('"final", of = "accuracy"', '"final", of = "acuracy"'), "did you mean 'accuracy'"),
        (('figures = [["2", "worst"]]', 'figures = [["2", "wurst"]]'), "did you mean 'worst'"),
        (
            ("[scales.small]", '[changes]\n"a change" = { rounds = 1 }\n[scales.small]'),
            "part of a run's name",
        ),
    ],
)
def test_a_name_that_does_not_exist_is_named(change, said):
    text = (
        (FOLDER / "study.toml")
        .read_text()
        .replace("[readings.quiet]", '[readings.quiet]\nrow = "wide"')
    )
    assert change[0] in text
    broken = Study("toy", Described.read(text.replace(*change), "toy"), toy.study.published)
    for kind in ("measures", "curves", "probes", "judges"):
        getattr(broken, kind).update(getattr(toy.study, kind))
    with pytest.raises(FieldError, match=said):
        check_study(broken)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (("1", "C = 2", "vanilla", "accuracy"), "row = 'C = 2'"),
        (("1", "C = 1", "vanila", "accuracy"), "did you mean 'vanilla'"),
        (("1", "C = 1", "vanilla", "f2"), "figure = 'f2'"),
    ],
)
def test_a_printed_figure_that_would_stand_nowhere_is_named(place, said):
    published = {**toy.study.published, place: next(iter(toy.study.published.values()))}
    broken = Study("toy", toy.study.described, published)
    for kind in ("measures", "curves", "probes", "judges"):
        getattr(broken, kind).update(getattr(toy.study, kind))
    with pytest.raises(FieldError, match=said):
        check_study(broken)


def test_a_scenario_may_lie_beside_the_study(tmp_path):
    text = (
        (FOLDER / "study.toml")
        .read_text()
        .replace('digits = "digits-compare"', 'digits = "mine.toml"')
    )
    (tmp_path / "study.toml").write_text(text)
    (tmp_path / "published.csv").write_text((FOLDER / "published.csv").read_text())
    (tmp_path / "mine.toml").write_text(load("digits-compare").to_toml())
    told = Study.of("beside", tmp_path)
    for kind in ("measures", "curves", "probes", "judges"):
        getattr(told, kind).update(getattr(toy.study, kind))
    asked = Reproduction(check_study(told), Choices(workers=1))
    assert len(asked.cells(Selection.of(asked))) == 2 * CELLS
    with pytest.raises(FieldError, match=r"study\.toml"):
        Study.of("beside", tmp_path / "nowhere")


def test_what_a_measure_asks_for_and_no_run_has_is_named(monkeypatch):
    monkeypatch.setitem(
        toy.study.measures, "best client", lambda outcomes, argument: outcomes["best"]
    )
    with pytest.raises(FieldError, match=r"best client.*'best'"):
        toy.study.function("measures", MeasureOf(measure="best client"))({})
