"""Advice at region level is the measured map's, and only for runs like its own."""

import json
from pathlib import Path

import pytest

from fedveil_lab.config import parse
from fedveil_lab.runs.foreseen import foreseen
from fedveil_lab.runs.prepare import prepare
from fedveil_lab.runs.region_map import MEASURED, advice_on_regions

MAP = Path(__file__).resolve().parents[3] / "results" / "regions" / "map.json"
PRIVACY = {
    "method": "record",
    "unit": "region",
    "relation": "replace-one",
    "epsilon": 1.0,
    "clip": 0.3,
    "examples": 1000,
}


def setup_of(privacy=(), **changes):
    values = {
        "name": "tiny",
        "rounds": 3,
        "data": {"name": "digits", "clients": 1, "region": [4, 0, 8, 8]},
        "model": {"name": "logistic"},
        "privacy": {**PRIVACY, **dict(privacy)},
    }
    return prepare(parse({**values, **changes}))


def test_the_cells_are_those_of_the_map():
    cells = json.loads(MAP.read_text())["cells"]
    assert len(cells) == len(MEASURED)
    for cell, own in zip(cells, MEASURED, strict=True):
        assert own.data == cell["data"]
        assert own.kind == ("table" if cell["data"] == "heart disease" else "images")
        assert (own.records, own.epsilon) == (cell["records"], cell["epsilon"])
        for name in ("none", "blanked", "record", "region"):
            assert getattr(own, name) == pytest.approx(cell[name], abs=6e-7)
        assert own.beats_blanked == (cell["region - blanked"][1] > 0)
        assert own.beats_record == (cell["region - record"][1] > 0)
        assert (own.best == "region level") == (cell["best"] == "region")


def test_figures_are_printed_as_on_the_maps_page():
    page = (MAP.parent / "README.md").read_text()
    for cell in MEASURED:
        row = f"| {cell.none:.3f} | {cell.blanked:.3f} | {cell.record:.3f} | {cell.region:.3f} |"
        assert row in page


def test_each_way_is_best_somewhere():
    ways = {"region level", "record level", "blank the region"}
    assert {cell.best for cell in MEASURED} == ways


def test_a_run_like_the_maps_gets_its_cells_in_the_order_of_what_blanking_loses():
    _, *cells, _ = advice_on_regions(setup_of(), 1.0)
    ways = [cell.partition(":")[0] for cell in cells]
    assert ways == ["blank the region", *["region level"] * 4, "record level"]
    assert all("1000 records, epsilon 1)" in cell for cell in cells)
    ways = [cell.partition(":")[0] for cell in advice_on_regions(setup_of(), 3.9)[1:-1]]
    assert ways == ["blank the region", *["region level", "record level"] * 2, "record level"]
    assert [cell.rpartition("; ")[2].partition(",")[0] for cell in cells] == [
        "digits",
        "blood cells",
    ] * 3


@pytest.mark.parametrize(
    ("privacy", "changes", "reason"),
    [
        ({"relation": "zero-out"}, {}, "relation"),
        ({"rate": 0.5}, {}, "sampled"),
        ({"examples": 100}, {}, "records"),
        ({}, {"model": {"name": "mlp"}}, "model"),
        ({}, {"data": {"name": "digits", "clients": 2, "region": [4, 0, 8, 8]}}, "silos"),
    ],
)
def test_a_run_unlike_the_maps_gets_no_figure(privacy, changes, reason):
    [line] = advice_on_regions(setup_of(privacy, **changes), 1.0)
    assert "does not cover" in line
    assert reason in line


@pytest.mark.parametrize("epsilon", [0.99, 4.01])
def test_beyond_the_maps_epsilons_it_says_nothing(epsilon):
    [line] = advice_on_regions(setup_of(), epsilon)
    assert "epsilon" in line


def test_of_other_units_it_says_nothing():
    assert advice_on_regions(setup_of({"unit": "record"}), 1.0) == []


def test_no_accuracy_is_forecast_for_regions_by_a_formula_of_records():
    assert foreseen(setup_of().config) == []
    assert foreseen(setup_of({"unit": "record"}).config)
