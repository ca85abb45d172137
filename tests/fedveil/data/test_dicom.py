"""DICOM files as hospitals store them, written here by pydicom itself."""

import numpy as np
import pytest

from fedveil.data import load
from fedveil.errors import FieldError

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("PIL")


def write(path, pixels, *, bits=12, window=None, slope=None, dark=False, frames=1):
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = (
        SecondaryCaptureImageStorage,
        ExplicitVRLittleEndian,
    )
    meta.MediaStorageSOPInstanceUID = generate_uid()
    one = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    one.SOPClassUID, one.SOPInstanceUID = (
        meta.MediaStorageSOPClassUID,
        meta.MediaStorageSOPInstanceUID,
    )
    one.PatientName, one.PatientID = "Doe^Jane", "4711"
    one.Rows, one.Columns = pixels.shape[-2:]
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME1" if dark else "MONOCHROME2"
    one.BitsAllocated, one.BitsStored, one.HighBit = 16, bits, bits - 1
    one.PixelRepresentation = int(pixels.dtype.kind == "i")
    if frames > 1:
        one.NumberOfFrames = frames
    if slope is not None:
        one.RescaleSlope, one.RescaleIntercept = slope
    if window is not None:
        one.WindowCenter, one.WindowWidth = window
    one.PixelData = pixels.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    one.save_as(path, enforce_file_format=True)


RAW = np.array([[0, 1024], [2048, 4095]], np.uint16)


@pytest.mark.parametrize(
    ("pixels", "options", "wanted"),
    [
        (RAW, {}, RAW / 4095),  # what 12 bits can hold
        (RAW, {"dark": True}, 1 - RAW / 4095),  # MONOCHROME1: 0 is white
        # Hounsfield units v - 1024, shown by C.11.2.1.2: (v - 1024 - 39.5) / 399 + 1/2, cut to [0, 1]
        (
            np.array([[0, 964], [1064, 4095]], np.uint16),
            {"slope": (1, -1024), "window": (40, 400)},
            [[0, 0.5 - 99.5 / 399], [0.5 + 0.5 / 399, 1]],
        ),
        (
            np.array([[-2048, 0], [1, 2047]], np.int16),
            {},
            np.array([[0, 2048], [2049, 4095]]) / 4095,
        ),
        (
            np.array([[0, 0], [10, 20]], np.uint16),
            {"window": ([10, 99], [20, 99])},
            [[0, 0], [0.5 + 0.5 / 19, 1]],
        ),  # the first one
    ],
)
def test_pixels_are_shown_as_the_file_says(tmp_path, pixels, options, wanted):
    write(tmp_path / "set" / "a" / "1.dcm", pixels, **options)
    found = load("folder", path=str(tmp_path / "set"))
    np.testing.assert_allclose(found.x[0, 0].numpy(), np.asarray(wanted), atol=1e-5)


def test_folders_hold_clients_of_dicom_and_sizes_are_made_equal(tmp_path):
    for client in ("north", "south"):
        for label, level in (("ill", 4000), ("well", 100)):
            for i in range(3):
                write(tmp_path / client / label / f"{i}.DCM", np.full((8 + i, 8), level, np.uint16))
    found = load("folder", path=str(tmp_path), layout="clients", size=[4, 4])
    assert found.x.shape == (12, 1, 4, 4)
    assert found.owners == ("north", "south")
    assert found.class_names == ("ill", "well")
    assert float(found.x[found.y == 0].min()) > 0.9 > 0.1 > float(found.x[found.y == 1].max())
    assert "4711" not in repr(found)
    assert "Jane" not in repr(found)


def test_what_is_no_single_grey_image_is_refused_by_its_name(tmp_path):
    write(tmp_path / "a" / "x.dcm", np.zeros((2, 4, 4), np.uint16), frames=2)
    with pytest.raises(FieldError, match=r"x\.dcm.*4 x 4 x 2.*one grey image"):
        load("folder", path=str(tmp_path))
    write(tmp_path / "a" / "x.dcm", np.zeros((4, 4), np.uint16))
    with pytest.raises(FieldError, match=r"x\.dcm.*max_pixels"):
        load("folder", path=str(tmp_path), max_pixels=15)
    (tmp_path / "a" / "x.dcm").write_bytes(b"no image at all")
    with pytest.raises(FieldError, match=r"x\.dcm.*cannot be read as .*DICOM"):
        load("folder", path=str(tmp_path))
    write(tmp_path / "a" / "x.dcm", np.zeros((4, 4), np.uint16))
    with pytest.raises(FieldError, match=r"x\.dcm.*grey"):
        load("folder", path=str(tmp_path), mode="rgb")
