"""Who owns an example: ids in every loader, dealt out and held out by person, and told to nobody."""

import math
import traceback

import numpy as np
import pandas as pd
import pytest
import torch

from fedveil.data import federate, from_torch, load
from fedveil.data.labels import people_of
from fedveil.data.sets import DataSet
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.methods import build
from fedveil_lab.runs.deal import Dealt
from fedveil_lab.runs.models import check_fit


def same(group, wanted):
    """Whether two labellings put the same examples together."""
    pairs = {(int(a), wanted[i]) for i, a in enumerate(group)}
    return len(pairs) == len(set(group.tolist())) == len(set(wanted))


IDS = ["ann", "bob", "ann", "cy", "bob", "ann"]


def test_an_array_of_an_npz_file(tmp_path):
    x, y = np.random.default_rng(0).random((6, 4, 4)), np.array([0, 1, 0, 1, 0, 1])
    np.savez(
        tmp_path / "a.npz", x=x, y=y, patient=np.array(IDS), number=np.array([7, 8, 7, 9, 8, 7])
    )
    for name in ("patient", "number"):
        assert same(load("npz", path=tmp_path / "a.npz", person=name).group, IDS)
    with pytest.raises(FieldError, match="patient"):
        load("npz", path=tmp_path / "a.npz", person="patent")


def test_a_column_of_a_table_is_no_input(tmp_path):
    frame = pd.DataFrame({"v": range(6), "ill": [0, 1] * 3, "id": IDS})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    options = {"target": "ill", "classes": 2, "columns": {"v": [0, 10]}, "person": "id"}
    for file in ("a.csv", "a.parquet"):
        data = load("table", path=tmp_path / file, **options)
        assert same(data.group, IDS)
        assert data.input_shape == (1,)
    assert load(
        "table", path=tmp_path / "a.csv", target="ill", classes=2, scale="none", person="id"
    ).input_shape == (1,)
    with pytest.raises(FieldError, match=r"data\.columns\.id"):
        load("table", path=tmp_path / "a.csv", **{**options, "columns": {"id": [0, 10]}})


def test_a_row_without_an_id_is_refused_and_no_id_is_shown(tmp_path):
    pd.DataFrame({"v": [1, 2], "ill": [0, 1], "id": ["Mary Smith", None]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    with pytest.raises(FieldError, match="row 2") as refused:
        load(
            "table",
            path=tmp_path / "a.csv",
            target="ill",
            classes=2,
            columns={"v": [0, 10]},
            person="id",
        )
    assert "Mary" not in str(refused.value)


def test_folders_a_person(tmp_path):
    from PIL import Image

    for label, person, image in [
        ("a", "p1", "1"),
        ("a", "p1", "2"),
        ("a", "p2", "1"),
        ("b", "p1", "1"),
        ("b", "p3", "1"),
    ]:
        folder = tmp_path / label / person
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(folder / f"{image}.png")
    data = load("folder", path=tmp_path, person="folder")
    assert same(data.group, ["p1", "p1", "p2", "p1", "p3"])
    assert data.y.tolist() == [0, 0, 0, 1, 1]
    Image.new("L", (4, 4)).save(tmp_path / "a" / "stray.png")
    with pytest.raises(FieldError, match=r"stray\.png"):
        load("folder", path=tmp_path, person="folder")


@pytest.mark.parametrize("fault", ["damaged", "of another size", "no image", "a folder"])
def test_a_bad_image_is_named_without_its_person(tmp_path, fault):
    from PIL import Image

    for person in ("Adam West", "Mary Smith"):
        folder = tmp_path / "ill" / person
        folder.mkdir(parents=True)
        Image.new("L", (4, 4)).save(folder / "1.png")
    bad = tmp_path / "ill" / "Mary Smith"
    if fault == "damaged":
        (bad / "2.png").write_bytes(b"no image")
    elif fault == "of another size":
        Image.new("L", (5, 4)).save(bad / "2.png")
    elif fault == "no image":
        (bad / "2.txt").write_text("Mary")
    else:
        (bad / "2").mkdir()
    with pytest.raises(FieldError) as refused:
        load("folder", path=tmp_path, person="folder")
    assert "ill/person 2/image 2" in str(refused.value)
    told = "".join(traceback.format_exception(refused.value))
    assert "Mary" not in told
    assert "Smith" not in told


def test_items_of_a_torch_data_set():
    pairs = torch.utils.data.TensorDataset(torch.rand(6, 3), torch.tensor([0, 1] * 3))
    assert same(from_torch(pairs, people=IDS).group, IDS)


@pytest.mark.data
def test_writers_are_people():
    data = load("mnist-by-writer", person="writer")
    assert torch.equal(data.group, data.owner)


@pytest.mark.parametrize(
    "ids",
    [
        [1, "1", 1],
        [1, 1.0, 1],
        [1.0, 2.0, 3.0],
        ["a", None, "b"],
        ["a", math.nan, "b"],
        ["a", "", "b"],
        [1, 2],
        ["1", "1.0", "2"],
        ["7", "007", "b"],
        ["Ann", "bob", "ann"],
        ["Ann", "bob", "Ann "],
        ["Zo\u00eb", "bob", "Zoe\u0308"],
        ["a", " ", "b"],
        ["a", "NaN", "b"],
        ["1,23457E+11", "b", "c"],
        ["1.2e+15", "3", "4"],
        [True, False, True],
        [[1], [2], [3]],
        np.array([1.0, math.nan, 2.0]),
    ],
)
def test_ids_that_may_be_one_person_or_two_are_refused(ids):
    with pytest.raises(FieldError) as refused:
        people_of("file:id", ids, 3)
    assert refused.value.field.startswith("file:id")


def test_an_id_that_may_be_another_one_is_named_as_the_rows_of_a_table_are(tmp_path):
    (tmp_path / "visits.csv").write_text("patient,age,y\nP1,30,0\nP2,40,1\np1,50,1\n")
    with pytest.raises(FieldError) as refused:
        load(
            "table",
            path=tmp_path / "visits.csv",
            target="y",
            classes=2,
            columns={"age": [0, 90]},
            person="patient",
        )
    assert refused.value.field == "visits.csv, row 3 (line 4), column patient"
    assert "row 1 (line 2)" in refused.value.accepted


def test_long_numbers_and_texts_that_differ_are_different_people():
    ids = [f"{10**30 + i}" for i in range(2)] + ["1e5x", "12e5", "a b", "ab", "-1", "1"]
    assert people_of("id", ids, 8).tolist() == list(range(8))


def test_numbers_of_people_tell_nothing_but_who_is_the_same():
    assert (
        people_of("id", ["zoe", "adam", "zoe"], 3).tolist()
        == [0, 1, 0]
        == people_of("id", [9, -3, 9], 3).tolist()
    )


def people(n=60, each=3, owners=2):
    y = torch.arange(n) % 2
    group = torch.arange(n) // each
    owner = torch.arange(n) % owners
    return DataSet(
        name="toy",
        x=torch.rand(n, 2),
        y=y,
        classes=2,
        group=group,
        owner=owner,
        owners=tuple(map(str, range(owners))),
    )


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_a_person_is_at_one_client_and_on_one_side_of_the_split(scheme):
    data = people()
    dealt = federate(
        data, clients=4, scheme=scheme, seed=0, **({"alpha": 1.0} if scheme == "dirichlet" else {})
    )
    where = {}
    for i, client in enumerate(dealt):
        trained = {tuple(row.tolist()) for row in client.x}
        held = {tuple(row.tolist()) for row in client.test_x}
        for row, person in zip(data.x, data.group, strict=True):
            key = tuple(row.tolist())
            for side, rows in (("train", trained), ("held", held)):
                if key in rows:
                    where.setdefault(int(person), set()).add((i, side))
        assert len(client.person) == client.examples
        assert bool((torch.unique(client.person, return_counts=True)[1] == 3).all())
    assert all(len(places) == 1 for places in where.values())
    assert len(where) == 20


def test_a_person_of_two_hospitals_stays_at_both():
    dealt = federate(people(), clients="natural", holdout=0.0, seed=0)
    assert [c.examples for c in dealt] == [30, 30]
    assert set(dealt[0].person.tolist()) & set(dealt[1].person.tolist())


def test_a_client_says_who_owns_each_example():
    x, y = torch.rand(3, 2), torch.tensor([0, 1, 0])
    assert ClientData(x, y, person=torch.tensor([5, 5, 7])).person.tolist() == [5, 5, 7]
    for bad in (torch.tensor([1, 2]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[1], [2], [3]])):
        with pytest.raises(FieldError) as refused:
            ClientData(x, y, person=bad)
        assert refused.value.field == "person"


def test_who_is_at_two_natural_clients_is_held_out_at_both_or_at_none():
    """Of 189 people at two hospitals 52 were trained on at one and measured on at the other."""
    dealt = federate(people(), clients="natural", seed=0, holdout=0.4)
    train, test = (
        {int(p) for client in dealt for p in (client.person if half else client.test_person)}
        for half in (True, False)
    )
    assert train
    assert test
    assert not train & test


@pytest.mark.parametrize(("silos", "fits"), [(1, False), (2, True)])
def test_a_run_in_which_a_person_is_at_more_silos_than_declared_is_refused(silos, fits):
    """It printed "no person is at more than 1 silo" over data in which everybody was at two."""
    dataset = people()
    dealt = Dealt(dataset, federate(dataset, clients="natural", seed=0))
    how = {"people": 10, "records_per_person": 3, "noise_multiplier": 1.0}
    method = build("record", unit="person", silos_per_person=silos, **how)
    model = torch.nn.Linear(2, 2)
    if fits:
        check_fit(dealt, method, "cross_entropy", "linear", model)
        return
    with pytest.raises(FieldError, match="silos_per_person"):
        check_fit(dealt, method, "cross_entropy", "linear", model)
