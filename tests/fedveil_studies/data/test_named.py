"""The real sets by name: stand-ins for their files everywhere, the files themselves where they are (mark `data`)."""

import gzip
import hashlib

import numpy as np
import pytest
import torch

from fedveil.data import SOURCES, MissingDataError, federate, load
from fedveil.errors import FieldError
from fedveil_lab.config import parse
from fedveil_lab.runs import run
from fedveil_studies.data import cms, named
from fedveil_studies.data.cms import LATITUDE, LONGITUDE
from fedveil_studies.data.named import BLOOD_CLASSES

MNIST_TRAIN = [
    5923,
    6742,
    5958,
    6131,
    5842,
    5421,
    5918,
    6265,
    5851,
    5949,
]  # of the official label files
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
# The source of BloodMNIST (Acevedo et al. 2020), all three parts together.
BLOOD_CELLS = [1218, 3117, 1551, 2895, 1214, 1420, 3329, 2348]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setenv(
        "FEDVEIL_CACHE", str(tmp_path / "cache")
    )  # a user's own may hold decoded copies
    for room in (named, cms):  # the files here are made up
        monkeypatch.setattr(room, "require_version", lambda *given: None)
    monkeypatch.setattr(named, "require_published_file", lambda *given: None)
    return tmp_path


def real(name, **options):
    if not SOURCES[name].available:
        pytest.skip(
            f"{', '.join(SOURCES[name].missing)} is not here: set FEDVEIL_DATA to the folder that holds it"
        )
    return load(name, **options)


@pytest.mark.parametrize("name", [name for name, info in SOURCES.items() if info.files])
def test_an_absent_set_names_file_folder_and_origin(here, name):
    info = SOURCES[name]
    assert (info.available, info.missing) == (False, [names[0] for names in info.files])
    with pytest.raises(MissingDataError) as caught:
        load(name)
    for text in (info.missing[0], "FEDVEIL_DATA", info.official):
        assert text in str(caught.value)


def blood(path, level=255, **changes):
    arrays = {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = np.full((8, 4, 6, 3), level, dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(8, dtype=np.uint8)[:, None]
    np.savez(path, **{**arrays, **changes})


def test_the_official_bloodmnist_is_preferred_to_the_rebuilt_one(here):
    blood(here / "bloodmnist_rebuilt_28.npz", 0)
    rebuilt = load("bloodmnist")
    assert "Rebuilt" in rebuilt.note
    blood(here / "bloodmnist.npz")
    data = load("bloodmnist", split="val", scale="standard")
    assert (data.note, data.class_names) == ("", BLOOD_CLASSES)
    assert data.x.unique().tolist() == [1.0]
    assert rebuilt.x.unique().tolist() == [0.0]


def test_a_bloodmnist_file_of_another_md5_is_refused_with_where_the_official_one_is(
    here, monkeypatch
):
    file = here / "bloodmnist.npz"
    blood(file)
    monkeypatch.undo()
    monkeypatch.setenv("FEDVEIL_DATA", str(here))
    with pytest.raises(FieldError, match=r"MD5 begins with .* 7053d0359d87.*zenodo"):
        load("bloodmnist")
    own = hashlib.md5(file.read_bytes()).hexdigest()
    monkeypatch.setattr(named, "OFFICIAL_BLOOD", own)
    assert len(load("bloodmnist").x) == 8


def test_files_that_are_not_what_they_are_called(here):
    np.savez(here / "bloodmnist.npz", images=np.zeros(3))
    with pytest.raises(
        FieldError, match="its file lacks train_images, train_labels, test_images, test_labels"
    ):
        load("bloodmnist")
    for name, file in (
        ("mnist-by-writer", "mnist_by_writer"),
        ("sroie", "sroie2019_200_gray768"),
        ("cifar10-subset", "cifar10_subset"),
    ):
        np.savez(here / f"{file}.npz", images=np.zeros(3))
        with pytest.raises(FieldError, match=f"data.name = '{name}': its file lacks"):
            load(name)
    blood(here / "bloodmnist.npz", train_labels=np.arange(1, 9, dtype=np.uint8))
    with pytest.raises(
        FieldError, match=r"train_labels\[7\] = 8: must be one of the 8 declared classes"
    ):
        load("bloodmnist")
    with gzip.open(here / "cms_inpatient_drg100_fy2011.csv.gz", "wt") as file:
        file.write("drg,provider\n194,1\n")
    with pytest.raises(
        FieldError, match=r"cms_inpatient_drg100_fy2011\.csv\.gz cannot be used.*needs"
    ):
        load("cms-inpatient")


def test_writers_are_turned_as_a_whole_and_by_their_seed(here):
    corner = np.zeros((20, 4, 4), dtype=np.uint8)
    corner[:, 0, 3] = 255  # top right; a turn to the left brings it to the top left
    labels, writers = np.tile(np.arange(10), 2), np.repeat(np.arange(5), 4)
    half = {"images": corner, "labels": labels, "writer": writers}
    np.savez(
        here / "mnist_by_writer.npz",
        **{f"{p}_{k}": v for p in ("train", "test") for k, v in half.items()},
    )
    plain = load("mnist-by-writer")
    assert bool((plain.x[:, 0, 0, 3] == 1).all())
    assert (plain.owners, plain.owner.tolist()) == (("0", "1", "2", "3", "4"), writers.tolist())
    seen = set()
    for seed in range(6):
        data = load("mnist-by-writer", rotated=0.5, rotation_seed=seed)
        turned = data.x[:, 0, 0, 0] == 1
        assert torch.equal(turned, data.x[:, 0, 0, 3] == 0)
        per_writer = turned.reshape(5, 4)
        assert torch.equal(per_writer, per_writer[:, :1].expand(5, 4))
        assert torch.equal(turned, data.test_x[:, 0, 0, 0] == 1)
        seen.add(tuple(per_writer[:, 0].tolist()))
    assert len(seen) > 3
    assert bool((load("mnist-by-writer", rotated=1.0).x[:, 0, 0, 0] == 1).all())
    with pytest.raises(FieldError, match=r"data\.rotated"):
        load("mnist-by-writer", rotated=1.5)


def test_charges_by_hand(here):
    with gzip.open(here / "cms_outpatient_apc30_cy2011.csv.gz", "wt") as file:
        file.write("apc,provider_id,avg_submitted_charges,avg_total_payments\n")
        file.write(
            "0269 - ECHO,0002,4000,1000\n0267 - SCAN,0002,3000,500\n0336 - MRI,0001,2000,250\n0001 - NONE,0001,9,9\n"
        )
    places = "provider_id,zip_lon,zip_lat\n0002,-120,45\n0001,-60,15\n"
    with gzip.open(here / "cms_providers_geo.csv.gz", "wt") as file:
        file.write(places)
    data = load("cms-outpatient", services=["0267", "0269", "0336"])
    expected = [[1.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.5, 0.5, 0.5]]
    torch.testing.assert_close(data.x, torch.tensor(expected))
    assert data.y.tolist() == [0.25, 0.5, 1.0]
    assert (data.owners, data.owner.tolist()) == (("0001", "0002"), [0, 1, 1])
    assert data.attributes["longitude"].tolist() == [-60.0, -120.0]
    assert load("cms-outpatient", services=["0267"], target="charges", unit=1.0).y.tolist() == [
        3000.0
    ]
    with gzip.open(here / "cms_inpatient_drg100_fy2011.csv.gz", "wt") as file:
        file.write(
            "drg,provider_id,avg_covered_charges,avg_total_payments\n194 - FLU,0001,5,5\n194 - FLU,0002,5,\n"
        )
    with pytest.raises(
        FieldError, match=r"fy2011\.csv\.gz, row 2, column avg_total_payments is missing"
    ):
        load("cms-inpatient", services=["194"])
    with pytest.raises(FieldError, match=r"data\.services = '0268'.*did you mean"):
        load("cms-outpatient", services=["0268"])
    with gzip.open(here / "cms_providers_geo.csv.gz", "wt") as file:
        file.write(places.replace("0002", "0003"))
    with pytest.raises(FieldError, match="'0002': this provider has charges, but no coordinates"):
        load("cms-outpatient", services=["0267"])


@pytest.mark.few(0)
@pytest.mark.data
def test_the_real_bloodmnist_loads_and_trains():
    parts = [real("bloodmnist", split=split) for split in ("val", "test")]
    data = parts[1]
    assert (len(data.x), len(parts[0].test_x), len(data.test_x)) == (11_959, 1_712, 3_421)
    assert data.input_shape == (3, 28, 28)
    counts = [y.bincount() for y in (data.y, parts[0].test_y, data.test_y)]
    assert torch.stack(counts).sum(0).tolist() == BLOOD_CELLS
    few = [[5] * 8, [4] * 8, [3] * 7 + [0]]
    spec = {
        "name": "bloodmnist",
        "clients": 3,
        "partition": "counts",
        "counts": few,
        "validation": 0.01,
    }
    model = {"name": "small_cnn", "channels": [4], "dense": 8}
    summary = run(parse({"name": "blood", "rounds": 1, "data": spec, "model": model}))
    assert summary.values["metrics"]["examples"] == 8 + 6 + 4  # a fifth of 40, 32 and 21
    assert (
        "1 of 3 clients hold no example of some class (client-2)"
        in summary.values["data"]["warnings"]
    )
    assert summary.values["test_metrics"]["examples"] == 3_387


@pytest.mark.data
def test_the_real_writers():
    data = real("mnist-by-writer")
    assert (data.y.bincount().tolist(), data.test_y.bincount().tolist()) == (
        MNIST_TRAIN,
        MNIST_TEST,
    )
    sizes = data.owner.bincount()
    assert (len(data.owners), int(sizes.min()), int(sizes.max())) == (539, 19, 131)
    clients = federate(data, clients=20, scheme="natural", seed=0)
    assert all(c.name in data.owners for c in clients)


@pytest.mark.data
def test_the_real_cifar_subset():
    data = real("cifar10-subset")
    assert (data.x.shape, data.test_x.shape) == ((10_000, 3, 32, 32), (3_000, 3, 32, 32))
    assert data.class_names[:2] == ("airplane", "automobile")


@pytest.mark.data
def test_the_real_charges():
    data = real("cms-inpatient")
    rows = data.owner.bincount()
    assert [int((rows >= least).sum()) for least in (1, 3, 4)] == [3151, 2964, 2738]
    assert float(data.x.min()) >= 0
    assert float(data.x.max()) <= 1
    every = load("cms-inpatient", services=[], target="charges")
    assert (len(every.x), len(every.owners)) == (163_065, 3_337)
    longitude, latitude = every.attributes["longitude"], every.attributes["latitude"]
    assert LONGITUDE[0] < float(longitude.min()) < float(longitude.max()) < LONGITUDE[1]
    assert LATITUDE[0] < float(latitude.min()) < float(latitude.max()) < LATITUDE[1]
    assert len(load("cms-outpatient", services=[]).x) == 43_372
    spec = {"name": "cms-outpatient", "clients": 30, "partition": "natural", "min_size": 3}
    changes = {"model": {"name": "regression", "hidden": [2]}, "local": {"loss": "mse", "lr": 0.05}}
    summary = run(parse({"name": "cms", "rounds": 2, "data": spec, **changes}))
    assert (summary.values["dimension"], summary.values["clients"]) == (11, 30)
    assert summary.values["metrics"]["rmse"] < 2


@pytest.mark.few(0)
@pytest.mark.data
def test_the_real_receipts():
    data = real("sroie", tiles=1)
    assert (data.x.shape, data.test_x.shape, data.y.shape) == (
        (160, 1, 128, 128),
        (40, 1, 128, 128),
        (160, 128, 128),
    )
    forged = data.y.flatten(1).sum(1)
    assert int(forged.min()) >= 36
    assert data.task == "segmentation"
    again = load("sroie", tiles=1)
    assert torch.equal(again.x, data.x)
    assert torch.equal(again.y, data.y)
    assert not torch.equal(load("sroie", tiles=1, tamper_seed=1).x, data.x)
