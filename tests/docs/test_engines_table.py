"""The table of methods and engines: each cell's test exists, and the page names the only cells without the same bits."""

import re
from pathlib import Path

import pytest
from engines_table import BIT, CELLS, NO, RUNS

ROOT = Path(__file__).parents[2]


def test_the_only_cells_without_the_same_bits_are_those_of_the_page():
    """Without a swarm's cells; of a recipe of FLARE's own nothing is promised."""
    runs = {
        (method, place)
        for method, cells in CELLS.items()
        for place, (said, _) in enumerate(cells[:-1])
        if said == RUNS and not method.startswith("a FLARE recipe")
    }
    sums = {("secure sum of records", 1), ("secure sum of persons", 1)}
    assert runs == sums | {("validation clients", 0)}
    page = (ROOT / "docs" / "nvflare-methods.md").read_text()
    assert "deployed SuperLink" in page
    assert "validation clients under Flower in one process" in page


@pytest.mark.parametrize("method", CELLS)
def test_each_cell_is_a_test(method):
    for said, where in CELLS[method]:
        if not said:  # a recipe is FLARE's
            assert method == "a FLARE recipe, by one line"
            continue
        assert said.startswith((BIT, RUNS, NO))
        file, _, name = where.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), where
