"""The table of methods and engines: it stands on the page as it is here, and each cell's test exists."""

import re
from pathlib import Path

import pytest
from engines_table import BIT, CELLS, NO, RUNS, table

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table():
    assert table() in (ROOT / "docs" / "nvflare-methods.md").read_text()


@pytest.mark.parametrize("method", CELLS)
def test_each_cell_is_a_test(method):
    for said, where in CELLS[method]:
        if not said:  # a recipe is FLARE's
            assert method == "a FLARE recipe, by one line"
            continue
        assert said.startswith((BIT, RUNS, NO))
        file, _, name = where.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), where
