"""Files of data and weights: changed bytes are read as a library reads them, or refused."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save as to_safetensors
from torch import nn

from fedveil.data import load
from fedveil.learning.weights import load_weights
from fuzz_kit import bytes_of, outcome, played, texts, values

pytestmark = pytest.mark.slow

GENERATOR = np.random.default_rng(0)


def npz(compressed=False):
    file = io.BytesIO()
    x, y = GENERATOR.random((12, 4), dtype=np.float32), np.arange(12) % 2
    (np.savez_compressed if compressed else np.savez)(
        file, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4]
    )
    return file.getvalue()


CSV = b"""age,sex,bp,site,outcome
34,f,120.5,a,0
51,m,131.0,b,1
"47",f,118.25,a,0
62,m,140.0,b,1
29,f,"119.0",a,0
70,m,150.5,b,1
"""


def picture(form, mode="L"):
    file = io.BytesIO()
    size = (6, 6) if mode == "L" else (6, 6, 3)
    Image.fromarray(GENERATOR.integers(0, 256, size, np.uint8)).save(file, form)
    return file.getvalue()


def dicom():
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    assert pydicom
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = (
        SecondaryCaptureImageStorage,
        ExplicitVRLittleEndian,
    )
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["a test"])
    one = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    one.SOPClassUID, one.SOPInstanceUID = (
        meta.MediaStorageSOPClassUID,
        meta.MediaStorageSOPInstanceUID,
    )
    one.Rows, one.Columns, one.SamplesPerPixel, one.PhotometricInterpretation = (
        4,
        4,
        1,
        "MONOCHROME2",
    )
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 12, 11, 0
    one.WindowCenter, one.WindowWidth = 2000, 3000
    one.PixelData = GENERATOR.integers(0, 4096, (4, 4), np.uint16).tobytes()
    file = io.BytesIO()
    one.save_as(file, enforce_file_format=True)
    return file.getvalue()


def model():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def torch_file():
    file = io.BytesIO()
    torch.save(model().state_dict(), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place for files; the libraries that read them are imported before anything is timed."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "first.csv").write_bytes(CSV)
    load("table", path=str(folder / "first.csv"), **TABLE)
    for name, raw, ending in (("png", picture("PNG"), ".png"), ("dcm", dicom(), ".dcm")):
        load("folder", path=str(_classes(folder / name, raw, ending, raw)))
    return folder


def right(data):
    """Whether a set holds finite numbers and labels that its classes have."""
    assert not data.x.is_floating_point() or torch.isfinite(data.x).all()
    assert len(data.x) == len(data.y)
    if data.classes and not data.y.is_floating_point() and data.y.ndim == 1 and len(data.y):
        assert 0 <= int(data.y.min()) <= int(data.y.max()) < data.classes
    return True


@played(6_000)
@given(st.one_of(bytes_of(npz()), bytes_of(npz(compressed=True))))
def test_an_npz_file(folder, raw):
    path = folder / "a.npz"
    path.write_bytes(raw)
    outcome(lambda: right(load("npz", path=str(path), classes=2)))


DTYPES = st.sampled_from(
    [
        "bool",
        "i1",
        "u1",
        "<i8",
        ">i4",
        "u8",
        "f2",
        "<f4",
        ">f4",
        "f8",
        "c8",
        "U3",
        "S2",
        "O",
        "M8[s]",
        "m8[ns]",
        "V4",
    ]
)


@st.composite
def arrays(draw):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=5)))
    kind = np.dtype(draw(DTYPES))
    if kind.kind == "O":
        return np.array([draw(values) for _ in range(3)], dtype=object)
    raw = draw(st.binary(min_size=0, max_size=64))
    need = int(np.prod(shape)) * kind.itemsize
    body = (raw * (need // max(1, len(raw)) + 1))[:need] if raw else b"\0" * need
    if kind.kind == "U":
        return np.full(shape, draw(st.text(max_size=3)).replace("\0", ""), dtype=kind)
    return np.frombuffer(body, kind).reshape(shape)


@played(6_000)
@given(arrays(), arrays(), st.integers(0, 3))
def test_an_npz_file_of_any_arrays(folder, x, y, classes):
    path = folder / "any.npz"
    np.savez(path, x=x, y=y)
    outcome(lambda: right(load("npz", path=str(path), classes=classes)))


BARE = {"target": "outcome", "classes": 2, "client_column": "site"}
TABLE = {**BARE, "scale": "none", "columns": ["age", "bp"]}
DECLARED = {**BARE, "columns": {"age": [0, 120], "sex": ["f", "m"], "bp": [50.0, 250.0]}}


@played(8_000)
@given(bytes_of(CSV), st.sampled_from([TABLE, DECLARED, {**DECLARED, "outside": "clip"}]))
def test_a_table(folder, raw, options):
    path = folder / "a.csv"
    path.write_bytes(raw)
    outcome(lambda: right(load("table", path=str(path), **options)))


@played(4_000)
@given(
    st.lists(st.lists(texts, min_size=1, max_size=5), min_size=1, max_size=6),
    st.sampled_from([",", ";", "\t"]),
)
def test_a_table_of_any_texts(folder, rows, separator):
    path = folder / "any.csv"
    text = "\n".join(
        separator.join(row) for row in [["age", "sex", "bp", "site", "outcome"], *rows]
    )
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    outcome(lambda: right(load("table", path=str(path), separator=separator, **TABLE)))


@played(4_000)
@given(
    st.one_of(
        bytes_of(picture("PNG")),
        bytes_of(picture("JPEG")),
        bytes_of(picture("BMP", "RGB")),
        bytes_of(picture("TIFF")),
    )
)
def test_a_picture(folder, raw):
    outcome(
        lambda: right(
            load("folder", path=str(_classes(folder / "pictures", raw, ".png", picture("PNG"))))
        )
    )


@played(4_000)
@given(bytes_of(dicom()))
def test_a_dicom_file(folder, raw):
    outcome(
        lambda: right(load("folder", path=str(_classes(folder / "dicom", raw, ".dcm", dicom()))))
    )


def _classes(root: Path, raw: bytes, ending: str, other: bytes) -> Path:
    for name, content in (("ill", raw), ("well", other)):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"1{ending}").write_bytes(content)
    return root


@played(5_000)
@given(
    st.one_of(
        st.tuples(bytes_of(to_safetensors(model().state_dict())), st.just(".safetensors")),
        st.tuples(bytes_of(torch_file()), st.just(".pt")),
    )
)
def test_a_file_of_weights(folder, changed):
    raw, ending = changed
    path = folder / f"weights{ending}"
    path.write_bytes(raw)
    network = model()
    outcome(lambda: load_weights(network, path))
    assert [tuple(p.shape) for p in network.parameters()] == [(3, 4), (3,), (2, 3), (2,)]
