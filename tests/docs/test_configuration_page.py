"""docs/configuration.md is what the schema says, and explains every key.

``python tests/docs/test_configuration_page.py`` writes it anew.
"""

import re
from pathlib import Path

import pytest

from fedveil.aggregation import AGGREGATORS
from fedveil.data import SOURCES
from fedveil.learning.models import MODELS
from fedveil.methods import METHODS
from fedveil_lab.config import Config
from reference_kit import pages, studies_pages

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = {
    ROOT / "docs" / "configuration.md": pages,
    ROOT / "studies" / "configuration.md": studies_pages,
}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.parent.name)
def test_the_page_is_the_schemas(page):
    assert page.read_text() == WRITTEN[page](), "python tests/docs/test_configuration_page.py"


def test_every_key_has_a_meaning_and_everything_that_can_be_named_is_there():
    text = pages() + studies_pages()
    assert not re.findall(r"^- `\w+.*:\s*$", text, re.MULTILINE)
    for names in (SOURCES, MODELS, METHODS, AGGREGATORS):
        assert all(f"`{name}`" in text for name in names)
    for section in Config.model_fields:
        assert f"`{section}" in text or f"[{section}]" in text


if __name__ == "__main__":
    for path, made in WRITTEN.items():
        path.write_text(made())
