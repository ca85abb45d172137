"""The study of person-level privacy: what its lines promise, and whose digits nobody trains on."""

import json
import re
from pathlib import Path

import pytest
import torch

from fedveil.data import load
from fedveil.data.sets import DataSet
from fedveil.gdp import epsilon_of_mu
from fedveil_studies.data.writers import first_images, parts_of, with_components
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.person_level import study


def writers():
    generator = torch.Generator().manual_seed(0)
    x, test = (torch.rand(n, 1, 4, 4, generator=generator) for n in (60, 400))
    owner = torch.arange(60) % 7
    found = DataSet(
        name="toy",
        x=x,
        y=owner % 2,
        test_x=test,
        test_y=torch.arange(400) % 2,
        classes=2,
        owner=owner,
    )
    return found, torch.arange(400) % 90


def test_public_writers_tuning_writers_and_the_rest_are_apart():
    found, writer = writers()
    parts = parts_of(writer)
    assert torch.equal(
        sum(part.long() for part in parts.values()), torch.ones(400, dtype=torch.int64)
    )
    sets = [set(writer[part].tolist()) for part in parts.values()]
    assert [len(one) for one in sets] == [30, 30, 30]
    kept = {part: with_components(found, writer, 5, part) for part in parts}
    assert [len(one.test_x) for one in kept.values()] == [
        int(part.sum()) for part in parts.values()
    ]
    assert torch.equal(kept["rest"].x, kept["tuning"].x)
    torch.testing.assert_close(kept["rest"].x.norm(dim=1), torch.ones(60))
    moved = found.test_x.clone()
    moved[~parts["public"]] += 1  # others' digits change nobody's features
    again = with_components(DataSet(**{**vars(found), "test_x": moved}), writer, 5, "rest")
    assert torch.equal(again.x, kept["rest"].x)


def test_the_first_images_of_each_writer_are_kept():
    found, _ = writers()
    kept = first_images(found, 3)
    assert torch.bincount(kept.owner).tolist() == [3] * 7
    assert torch.equal(kept.x, found.x[:21])


@pytest.mark.few(1)
@pytest.mark.data
@pytest.mark.parametrize("setting", ["sum", "secure", "alone"])
def test_lines_of_one_epsilon_promise_a_writer_the_same(setting):
    planned = Reproduction(study, Choices(seed=1, seeds=1))
    for row, epsilon in (("8", 8.0), ("4", 4.0), ("1", 1.0)):
        person, group = (
            planned.cell(scenario, row, setting, 1).config for scenario in ("writers", "group")
        )
        for config, people in ((person, 1), (group, 10)):
            side = config.privacy.build(config.aggregator).client
            spend = side.spend().guarantee
            total = spend.mu * config.rounds**0.5
            assert epsilon_of_mu(total * people, 1e-5) == pytest.approx(epsilon, rel=1e-6)
            assert spend.unit == ("person" if people == 1 else "record")
    assert load("mnist-by-writer", features=8, most=10).input_shape == (8,)


HERE = Path(__file__).parents[2]
RESULTS = HERE / "results"
LINES = [
    ("person level", "sum"),
    ("person level", "alone"),
    *(("record level by group of 10", s) for s in ("sum", "alone")),
]


def figures_of(study, table, seeds):
    kept = json.loads((RESULTS / study / "silos" / f"table-{table}.json").read_text())
    assert kept["seeds"] == list(range(1, seeds + 1))
    return {
        (r["row"], r["setting"], r["figure"]): f"{r['value']:+.3f}".replace("0.", ".")
        for r in kept["rows"]
    }


def printed(page, title, rows):
    """The first figure of every cell, and those in brackets with a sign, of a table below a title."""
    text = page.read_text()
    below = text[text.index(title) :]
    cells = {
        row: re.search(rf"^\| {re.escape(row)} \|(.*)$", below, re.MULTILINE)[1].split("|")
        for row in rows
    }
    return {
        row: [re.findall(r"[+-]?\.\d{3}", cell)[:2] for cell in line if cell.strip()]
        for row, line in cells.items()
    }


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository alone")
def test_the_table_of_persons_has_the_files_figures():
    kept = figures_of("person-level", "writers", 5)
    wanted = {
        level: [kept[f"{who}, {level}", s, "accuracy"] for who, s in LINES]
        for level in ("8", "4", "1")
    }
    page = printed(RESULTS / "person-level" / "README.md", "| total epsilon of one writer", wanted)
    assert {level: [f"+{cell[0]}" for cell in line] for level, line in page.items()} == wanted
    asked = {"8": (0.893, 0.879), "4": (0.887, 0.860), "1": (0.851, 0.665)}
    assert all(
        float(v) >= least
        for level, line in wanted.items()
        for v, least in zip(line, asked[level], strict=False)
    )


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository alone")
@pytest.mark.parametrize("study", ["person-level", "record-level"])
def test_runs_begun_with_the_public_model_end_above_it_in_the_mean_at_every_epsilon(study):
    kept, rows = figures_of(study, "public", 3), ("8", "4", "2", "1", ".5")
    sides = ["1 image(s) a person, ", "3 image(s) a person, "] if study == "person-level" else [""]
    wanted = {
        row: [
            [kept[f"{side}{row}", s, f] for f in ("accuracy", "gain")]
            for side in sides
            for s in ("sum", "alone")
        ]
        for row in rows
    }
    assert all(float(gain) > 0 for line in wanted.values() for _, gain in line)
    page = printed(RESULTS / study / "README.md", "## Begun with the public model", rows)
    assert {row: [[f"+{a}", b] for a, b in line] for row, line in page.items()} == wanted


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository alone")
def test_the_figures_of_patients_are_the_files():
    kept, names = (
        figures_of("person-level", "patients", 3),
        {"1": "1 image a person", "3": "3 images a person"},
    )
    names["10"] = "10 images a person"
    page = printed(RESULTS / "person-level" / "README.md", "| images a patient |", names)
    for images, row in names.items():
        found = [f"+{cell[0]}" for cell in page[images] if cell]
        assert found == [kept[row, s, "accuracy"] for s in ("sum", "alone")]
