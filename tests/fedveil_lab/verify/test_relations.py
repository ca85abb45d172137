"""Worlds that others make are checked: what differs by more than the claimed relation is refused by name."""

import numpy as np
import pytest

from fedveil.errors import FieldError
from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.neighbours import of_author
from fedveil_lab.verify.playing import verify_mechanism
from fedveil_lab.verify.relations import require_neighbours
from fedveil_lab.verify.worlds import Sizes, library, require_meaningful

ROWS = np.arange(8.0).reshape(4, 2)
FEWER, TWO_FEWER = ROWS[[0, 2, 3]], ROWS[[0, 3]]
OTHER, TWO_OTHER = ROWS.copy(), ROWS.copy()
OTHER[1], TWO_OTHER[1:3] = np.nan, 9
NONE = np.zeros((0, 2))

RIGHT = [
    ("add/remove", "record", [ROWS], [FEWER]),
    ("add/remove", "record", [FEWER], [ROWS]),
    ("add/remove", "record", [ROWS, OTHER], [ROWS, OTHER.copy()]),
    ("add/remove", "person", [ROWS], [TWO_FEWER]),
    ("replace-one", "record", [ROWS], [OTHER]),
    ("zero-out", "record", [ROWS], [OTHER]),
    ("replace-one", "person", [ROWS], [TWO_OTHER]),
    ("add/remove", "client", [ROWS, FEWER], [FEWER]),
    ("replace-one", "client", [ROWS, FEWER], [ROWS, TWO_OTHER]),
    ("zero-out", "client", [ROWS, FEWER], [ROWS, NONE]),
    ("zero-out", "client", [ROWS, FEWER], [ROWS, 0 * FEWER]),
]
WRONG = [
    ("add/remove", "record", [ROWS], [TWO_FEWER], "2 records"),
    ("add/remove", "record", [ROWS], [OTHER], "not all among"),
    ("add/remove", "record", [ROWS, ROWS], [FEWER, FEWER], "more than one client"),
    ("add/remove", "record", [ROWS, ROWS], [ROWS], "more than one client"),
    ("add/remove", "person", [ROWS], [ROWS[::-1]], "not all among"),
    ("replace-one", "record", [ROWS], [TWO_OTHER], "2 records"),
    ("replace-one", "record", [ROWS], [FEWER], "4 rows"),
    ("zero-out", "record", [ROWS], [TWO_OTHER], "2 records"),
    ("replace-one", "person", [ROWS], [FEWER], "4 rows"),
    ("add/remove", "client", [ROWS, FEWER], [ROWS, NONE], "there or not"),
    ("add/remove", "client", [ROWS, FEWER, FEWER], [ROWS], "there or not"),
    ("replace-one", "client", [ROWS, FEWER], [OTHER, ROWS], "2 clients"),
    ("zero-out", "client", [ROWS, FEWER], [ROWS], "2 clients"),
    ("zero-out", "client", [ROWS, FEWER], [ROWS, TWO_OTHER], "data in both"),
]


@pytest.mark.parametrize(("relation", "unit", "inside", "outside"), RIGHT)
def test_neighbours_pass(relation, unit, inside, outside):
    require_neighbours("mine", inside, outside, relation, unit)


@pytest.mark.parametrize(("relation", "unit", "inside", "outside", "why"), WRONG)
def test_what_is_no_neighbour_is_refused_with_the_reason(relation, unit, inside, outside, why):
    with pytest.raises(FieldError, match=why) as refused:
        require_neighbours("mine", inside, outside, relation, unit)
    assert refused.value.field == "worlds: mine"


def test_data_of_another_form_pass():
    require_neighbours("mine", {"x": 1}, {"x": 2}, "add/remove", "record")


@pytest.mark.parametrize("relation", ["add/remove", "replace-one"])
@pytest.mark.parametrize("unit", ["client", "record", "person"])
def test_the_library_itself_passes(relation, unit):
    claim = PrivacyClaim.parse(f"eps=1 delta=0 {relation} {unit} total central")
    for world in library(claim, Sizes()):
        require_neighbours(world.name, world.inside, world.outside, relation, unit)


MECHANISM = """
import numpy as np


def worlds(relation, unit):
    rows = np.ones((3, 2))
    return {"mine": ([rows], [rows[:GONE]])}


def mechanism(data, seed):
    return data[0].sum(axis=0) + np.random.default_rng(seed).normal(0, 8, 2)
"""


def test_a_file_whose_worlds_are_no_neighbours_gets_no_verdict(tmp_path):
    claim = PrivacyClaim.parse("eps=1 delta=1e-5 add/remove record total central")
    file = tmp_path / "mine.py"
    for gone, refused in ((-1, False), (-2, True)):
        file.write_text(MECHANISM.replace("GONE", str(gone)))
        if refused:
            with pytest.raises(FieldError, match="2 records"):
                verify_mechanism(file, "mechanism", claim, [], effort=Effort(runs=100))
        else:
            found = verify_mechanism(file, "mechanism", claim, [], effort=Effort(runs=100))
            assert not found.refuted


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        ("zero-out record total central", "add/remove or replace-one"),
        ("zero-out person total local", "add/remove or replace-one"),
        ("add/remove client total local", "replace-one or zero-out"),
    ],
)
def test_claims_whose_neighbours_no_arrays_show_need_worlds_of_ones_own(tmp_path, words, accepted):
    claim = PrivacyClaim.parse(f"eps=1 delta=1e-5 {words}")
    with pytest.raises(FieldError, match=accepted):
        require_meaningful(claim)
    file = tmp_path / "mine.py"
    own = "    return {'mine': ({'rows': 1}, {'rows': 0})}\n"
    told = (
        f"def worlds(relation, unit):\n{own}\n\ndef mechanism(data, seed):\n    return seed % 2\n"
    )
    worlds, effort = library(claim, Sizes()), Effort(runs=100)
    file.write_text(told.partition("\n\n\n")[2])
    with pytest.raises(FieldError, match=accepted):
        verify_mechanism(file, "mechanism", claim, worlds, effort=effort)
    file.write_text(told)
    found = verify_mechanism(file, "mechanism", claim, worlds, effort=effort)
    assert found.world.startswith("mine")  # the library's are left out


def test_a_file_s_world_may_not_have_a_name_of_the_library(tmp_path):
    claim = PrivacyClaim.parse("eps=1 delta=1e-5 add/remove record total central")
    file = tmp_path / "mine.py"
    file.write_text(MECHANISM.replace("GONE", "-1").replace('"mine"', '"plain"'))
    with pytest.raises(FieldError, match="name of the library"):
        verify_mechanism(file, "mechanism", claim, [], effort=Effort(runs=100))


def both(data, unit, relation):
    """Neighbours by an app's author, which forget two records."""
    x, y = data
    return (x, y), (x[:-2], y[:-2])


def test_an_author_s_neighbours_are_checked_where_their_form_is_known(monkeypatch):
    data = np.ones((5, 2)), np.zeros(5)
    place = f"{__name__}:both"
    monkeypatch.setitem(__import__("sys").modules, __name__, type("Module", (), {"both": both}))
    assert len(of_author(place, data, "person", "add/remove", False)[0]) == 3
    assert len(of_author(place, data, "client", "replace-one", True)[0]) == 5
    with pytest.raises(FieldError, match="2 records"):
        of_author(place, data, "record", "add/remove", True)
