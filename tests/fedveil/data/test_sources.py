import io

import numpy as np
import pytest
import torch

from fedveil.data import SOURCES, MissingDataError, bundled, data_folders, federate, load, prepare
from fedveil.data.bundled import ALZHEIMER_HOMOGENEOUS
from fedveil.data.sets import ALZHEIMER_FILE as FILE
from fedveil.data.sets import find
from fedveil.data.versions import require_version
from fedveil.errors import FieldError


def test_digits():
    data = load("digits")
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.float32
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert data.y.unique().tolist() == list(range(10))
    assert (data.input_shape, data.outputs) == ((1, 8, 8), 10)


def test_breast_cancer_is_standardised_and_says_how():
    data = load("breast-cancer")
    assert data.x.shape == (569, 30)
    torch.testing.assert_close(data.x.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    assert "held-out rows included" in data.note


@pytest.mark.parametrize(
    ("x_shape", "dtype", "shape"),
    [
        ((5, 8, 8), "uint8", (1, 8, 8)),
        ((5, 8, 8, 3), "uint8", (3, 8, 8)),
        ((5, 3, 8, 8), "uint8", (3, 8, 8)),
    ],
)
def test_npz_images_become_channels_first_and_scaled(tmp_path, x_shape, dtype, shape):
    x = np.full(x_shape, 51, dtype=dtype)
    np.savez(
        tmp_path / "a.npz",
        train_images=x,
        train_labels=np.arange(5)[:, None],
        test_images=x,
        test_labels=np.arange(5),
    )
    data = load("npz", path=tmp_path / "a.npz")
    assert data.input_shape == shape
    assert data.x.unique().tolist() == [pytest.approx(0.2)]
    assert data.y.tolist() == data.test_y.tolist() == [0, 1, 2, 3, 4]
    assert data.classes == 5


def test_npz_regression(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3)), y=np.arange(4.0))
    data = load("npz", path=str(tmp_path / "a.npz"))
    assert (data.classes, data.outputs, data.y.dtype) == (0, 1, torch.float32)


def bad(x, row, column, value):
    x = x.copy()
    x[row, column] = value
    return x


X, Y = np.ones((4, 3)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": bad(X, 2, 1, np.nan), "y": Y}, r"a\.npz:x\[2\]"),
        ({"x": X, "y": Y - 1}, r"a\.npz:y\[0\]"),
        ({"x": X, "y": Y[:3]}, r"a\.npz:y = 3"),
        ({}, r"a\.npz.*needs x_train and y_train"),
        ({"x": X[:0], "y": Y[:0]}, r"a\.npz:x = \(0, "),
        ({"x": X[:, :0], "y": Y}, r"a\.npz:x = \(4, 0\)"),
        ({"x": X, "y": Y, "x_test": X[:0], "y_test": Y[:0]}, r"a\.npz:x_test = \(0, "),
        ({"x": X, "y": np.ones((4, 0))}, r"a\.npz:y = \(4, 0\)"),
        ({"x": X, "labels": Y}, "x and y"),
        ({"x": X, "y": Y, "x_test": X}, "y_test"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "x_test"),
        ({"x": X, "y": np.array(["a", "b", "c", "d"])}, "numbers"),
        ({"x": X, "y": np.array([0, 1, 2, None])}, "pickle"),
        ({"x": X, "y": Y + 1}, r"a\.npz:y\[0\] = 1: the lowest label is 1, .* subtract 1"),
        ({"x": X, "y": Y * 2}, r"a\.npz:y = \[0, 2\]: no example of class 1.*data\.absent = \[1\]"),
        ({"x": X, "y": np.array([0, 10**9, 1, 2])}, "no example of class 3, 4, 5, 6, 7"),
        ({"x": X, "y": np.ones((4, 3), dtype=int)}, r"one class an example \[N\] or a pixel"),
        (
            {"x": np.ones((4, 1, 5, 5)), "y": np.zeros((4, 5, 6), dtype=int)},
            "height and width of x",
        ),
        (
            {"x": np.ones((4, 5, 6, 2)), "y": Y},
            r"a\.npz:x = \(4, 5, 6, 2\): neither end is one of 1, 3 or 4 channels",
        ),
        ({"x": np.ones((4, 3, 6, 4)), "y": Y}, "both ends can be 1, 3 or 4 channels"),
        ({"x": np.ones((4, 3)) * 1e300, "y": Y}, r"a\.npz:x\[0\]"),
    ],
)
def test_npz_refusals_name_file_array_and_row(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FieldError, match=message):
        load("npz", path=tmp_path / "a.npz")


def test_npz_declared_classes_gaps_clients_and_masks(tmp_path):
    np.savez(
        tmp_path / "a.npz", x=X, y=Y * 2, site=np.array(["b", "a", "b", "b"]), wide=np.ones((4, 2))
    )
    path = tmp_path / "a.npz"
    data = load("npz", path=path, classes=4, absent=[1, 3], client_array="site")
    assert (data.classes, data.owners, data.owner.tolist()) == (4, ("a", "b"), [1, 0, 1, 1])
    for options, message in (
        ({"classes": 2}, r"a\.npz:y\[1\] = 2: must be one of the 2 declared classes, 0 to 1"),
        ({"classes": 3}, "no example of class 1"),
        ({"absent": [1], "client_array": "sites"}, "did you mean 'site'"),
        (
            {"absent": [1], "client_array": "wide"},
            "one whole number or text for each of the 4 examples",
        ),
        ({"classes": 3, "absent": [3]}, r"data\.absent = \[3\]: must be classes, 0 to 2"),
    ):
        with pytest.raises(FieldError, match=message):
            load("npz", path=path, **options)
    np.savez(
        path,
        x=np.ones((2, 5, 6, 2)),
        y=np.stack([np.zeros((5, 6), dtype=int), np.ones((5, 6), dtype=int)]),
    )
    masks = load("npz", path=path, channels="last")
    assert (masks.input_shape, masks.task, masks.classes) == ((2, 5, 6), "segmentation", 2)
    np.savez(path, x=X, y=np.ones(4))
    with pytest.raises(FieldError, match="holds floating-point targets, no classes"):
        load("npz", path=path, classes=2)


def test_npz_files_that_are_none(tmp_path):
    with pytest.raises(MissingDataError, match="no file"):
        load("npz", path=tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"not an archive")
    with pytest.raises(FieldError, match="cannot be read"):
        load("npz", path=tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000, dtype=int))
    with pytest.raises(FieldError, match=r"max_gib"):
        load("npz", path=tmp_path / "b.npz", max_gib=0.001)


def test_unknown_names_and_options():
    with pytest.raises(FieldError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(FieldError, match="did you mean 'resolution'"):
        load("alzheimer", resolutoin=64)
    with pytest.raises(FieldError, match=r"data\.path is missing"):
        load("npz")
    assert prepare("digits") is None
    assert SOURCES["digits"].available


def test_an_absent_set_says_where_it_is_to_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setenv("FEDVEIL_CACHE", str(tmp_path / "cache"))
    assert data_folders() == [tmp_path]
    assert not SOURCES["alzheimer"].available
    with pytest.raises(MissingDataError, match=r"FEDVEIL_DATA.*Falah/Alzheimer_MRI"):
        load("alzheimer")
    assert SOURCES["alzheimer"].here == "no: needs alzheimer_mri_128_jpeg.npz"
    for resolution in (24, 128):
        (tmp_path / "cache").mkdir(exist_ok=True)
        np.savez(tmp_path / "cache" / f"alzheimer-{resolution}-1c9.npz", images=np.zeros(1))
    (tmp_path / "cache" / "alzheimer-64-1c9.npz").touch()  # damaged
    assert SOURCES["alzheimer"].here.startswith(
        "as prepared (resolution=24, resolution=128); else needs alz"
    )
    assert SOURCES["digits"].here == "yes"


def test_data_beside_the_checkout_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)
    folder = tmp_path / "shared" / "data"
    folder.mkdir(parents=True)
    (folder / "some.npz").touch()
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    assert find("some.npz") == folder / "some.npz"


@pytest.fixture
def small_alzheimer(tmp_path, monkeypatch):
    image_module = pytest.importorskip("PIL.Image")
    stream, offsets = b"", [0]
    for level in (0, 60, 120, 240):
        buffer = io.BytesIO()
        image_module.fromarray(np.full((128, 128), level, dtype=np.uint8)).save(buffer, "JPEG")
        stream += buffer.getvalue()
        offsets.append(len(stream))
    np.savez(
        tmp_path / FILE,
        jpeg=np.frombuffer(stream, dtype=np.uint8),
        offsets=np.array(offsets),
        labels=np.arange(4, dtype=np.uint8),
        split_kaggle=np.array([0, 0, 0, 1], dtype=np.uint8),
        split_hf_counts=np.array([1, 0, 0, 0], dtype=np.uint8),
    )
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setenv("FEDVEIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bundled, "require_version", lambda *given: None)  # these are made up
    return tmp_path


def test_another_version_of_alzheimer_is_refused(small_alzheimer, monkeypatch):
    monkeypatch.setattr(bundled, "require_version", require_version)
    with pytest.raises(FieldError, match=r"another version.*Falah/Alzheimer_MRI"):
        load("alzheimer", resolution=16)


def test_alzheimer_decodes_resizes_splits_and_caches(small_alzheimer, monkeypatch):
    data = load("alzheimer", resolution=16)
    assert data.x.shape == (3, 1, 16, 16)
    assert data.x[:, 0, 5, 5].mul(255).round().tolist() == [60, 120, 240]
    assert (data.y.tolist(), data.test_y.tolist()) == ([1, 2, 3], [0])
    assert load("alzheimer", resolution=16, split="kaggle").test_y.tolist() == [3]
    scaled = load("alzheimer", resolution=16, scale="standard")
    torch.testing.assert_close(scaled.x, (data.x - 0.3) / 0.3)
    path = prepare("alzheimer", resolution=16)
    assert path.parent == small_alzheimer / "cache"
    path.write_bytes(b"damaged")
    assert torch.equal(load("alzheimer", resolution=16).x, data.x)
    (small_alzheimer / FILE).unlink()
    assert torch.equal(load("alzheimer", resolution=16).x, data.x)
    with pytest.raises(FieldError, match="at most 128"):
        load("alzheimer", resolution=129)


@pytest.mark.data
def test_the_real_alzheimer_set(tmp_path, monkeypatch):
    if find(FILE) is None:
        pytest.skip(f"{FILE} is not here: set FEDVEIL_DATA to the folder that holds it")
    monkeypatch.setenv("FEDVEIL_CACHE", str(tmp_path))
    data = load("alzheimer", resolution=32)
    assert data.y.bincount().tolist() == [724, 49, 2566, 1781]
    assert data.test_y.bincount().tolist() == [172, 15, 634, 459]
    assert data.input_shape == (1, 32, 32)
    clients = federate(data, clients=4, scheme="counts", counts=ALZHEIMER_HOMOGENEOUS, seed=0)
    assert [(c.examples, c.held_out) for c in clients] == [(1024, 256)] * 4
    kaggle = load("alzheimer", resolution=32, split="kaggle")
    assert (len(kaggle.x), len(kaggle.test_x)) == (5121, 1279)
