"""An installed package brings data sets, models and presets by entry points, and FedVeil finds them by name."""

import pytest

from fedveil.errors import FieldError
from fedveil.registry import Registry
from fedveil_lab.config import load, presets

ENTRIES = """
[fedveil.mine]
wide = bringer.networks:wide
absent = bringer.networks:nothing
gone = bringer.nowhere:thing

[fedveil.presets]
bringer = bringer
"""
PRESET = """# A preset of another package. More of it.
name = "brought"
rounds = 1
data = { name = "digits", clients = 2 }
model = { name = "logistic" }
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    files = {
        "bringer/__init__.py": "",
        "bringer/networks.py": "def wide():\n    return 'wide'\n",
        "bringer/presets/brought.toml": PRESET,
        "bringer-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: bringer\nVersion: 1.0\n",
        "bringer-1.0.dist-info/entry_points.txt": ENTRIES,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


def registry(**known):
    return Registry("model.name", known, group="fedveil.mine")


@pytest.mark.usefixtures("installed")
def test_what_a_package_brings_is_imported_when_it_is_used():
    found = registry(own=print)
    assert set(found) == {"own", "wide", "absent", "gone"}
    assert (found.package("own"), found.package("wide")) == ("", "bringer")
    assert found.choose("wide")() == found["wide"]() == "wide"
    for name in ("absent", "gone"):
        with pytest.raises(FieldError, match="bringer cannot be imported"):
            found[name]
    with pytest.raises(FieldError, match="taken"):
        found.register("wide")(print)
    found.register("mine")(print)
    assert found["mine"] is print
    assert found.package("mine") == ""
    assert set(Registry("x", {})) == set()


@pytest.mark.usefixtures("installed")
def test_a_package_cannot_take_a_name_of_fedveils_own():
    found = registry(wide=print)
    assert found["wide"] is print
    assert found.package("wide") == ""


@pytest.mark.usefixtures("installed")
def test_presets_of_a_package_stand_beside_the_others():
    assert presets()["brought"] == "A preset of another package."
    assert "digits-compare" in presets()
    assert load("brought").name == "brought"
