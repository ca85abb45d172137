"""DICOM's numbers are shown as a viewer shows them, with pydicom's own windowing as the oracle; the rest is refused."""

import warnings

import numpy as np
import pytest

from fedveil.data.pictures import decode
from fedveil.errors import FieldError

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("PIL")

TABLE = np.array([0, 65535, 30000, 100], "<u2").tobytes()
RAMP = np.tile(np.array([0, 100, 500, 1000, 2000, 4095], np.uint16), (4, 1))


def write(path, pixels=RAMP, photometric="MONOCHROME2", bits=12, **tags):
    """A file with these tags; None takes one out, and "" leaves it empty, as old scanners do."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    one = Dataset()
    one.file_meta = FileMetaDataset()
    one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = SecondaryCaptureImageStorage
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = generate_uid()
    one.Rows, one.Columns, one.SamplesPerPixel, one.PhotometricInterpretation = (
        *pixels.shape[-2:],
        1,
        photometric,
    )
    one.BitsAllocated, one.BitsStored, one.HighBit = pixels.dtype.itemsize * 8, bits, bits - 1
    one.PixelRepresentation, one.PixelData = int(pixels.dtype.kind == "i"), pixels.tobytes()
    for tag, value in tags.items():
        if value is None:
            delattr(one, tag)
        else:
            setattr(one, tag, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one.save_as(path, enforce_file_format=True)
    return one


def read(tmp_path, *arguments, **tags):
    write(tmp_path / "1.dcm", *arguments, **tags)
    return decode("1.dcm", tmp_path / "1.dcm")


def by_pydicom(tmp_path, low, high):
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    one = pydicom.dcmread(tmp_path / "1.dcm")
    shown = apply_voi_lut(apply_modality_lut(one.pixel_array, one), one)
    shown = (shown - low) / (high - low)
    return 1 - shown if one.PhotometricInterpretation == "MONOCHROME1" else shown


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("window", [(1000, 400), (40, 1), ([500, 40], [3000, 80]), (-200, 5000)])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_windows_are_those_of_the_standard(tmp_path, function, window, photometric):
    tags = {"WindowCenter": window[0], "WindowWidth": window[1]} | (
        {"VOILUTFunction": function} if function else {}
    )
    shown = read(tmp_path, RAMP, photometric, **tags)
    np.testing.assert_allclose(shown, by_pydicom(tmp_path, 0, 4095), atol=2e-5)


@pytest.mark.parametrize("slope", [(1, -1024), (2.5, 0), (-1, 4095)])
def test_windows_are_in_units_of_the_modality(tmp_path, slope):
    tags = {
        "RescaleSlope": slope[0],
        "RescaleIntercept": slope[1],
        "WindowCenter": 40,
        "WindowWidth": 400,
    }
    ends = sorted((slope[1], 4095 * slope[0] + slope[1]))
    shown, wanted = read(tmp_path, **tags), by_pydicom(tmp_path, *ends)
    np.testing.assert_allclose(shown, wanted if slope[0] > 0 else 1 - wanted, atol=2e-5)


@pytest.mark.parametrize("slope", [(-1, 0), (-0.5, 100)])
def test_a_negative_slope_turns_white_into_black_without_a_window_too(tmp_path, slope):
    shown = read(tmp_path, RescaleSlope=slope[0], RescaleIntercept=slope[1])
    np.testing.assert_allclose(shown, 1 - RAMP / 4095, atol=2e-5)


def test_tags_that_are_there_and_empty_are_not_there(tmp_path):
    plain = read(tmp_path)
    for tags in (
        {"WindowCenter": "", "WindowWidth": ""},
        {"RescaleSlope": "", "RescaleIntercept": ""},
        {"VOILUTFunction": "", "PresentationLUTShape": ""},
        {"NumberOfFrames": ""},
        {"VOILUTSequence": [], "ModalityLUTSequence": []},
    ):
        np.testing.assert_array_equal(read(tmp_path, **tags), plain)
    np.testing.assert_allclose(plain, RAMP / 4095, atol=1e-5)


def test_bits_above_those_stored_are_none_of_the_picture(tmp_path):
    np.testing.assert_allclose(read(tmp_path, RAMP | np.uint16(0xF000)), RAMP / 4095, atol=1e-5)


def test_signed_numbers_keep_their_sign(tmp_path):
    pixels = np.array([[-2048, 0], [1, 2047]], np.int16)
    np.testing.assert_allclose(
        read(tmp_path, pixels), np.array([[0, 2048], [2049, 4095]]) / 4095, atol=1e-5
    )


def test_a_table_of_display_is_applied(tmp_path):
    from pydicom.dataset import Dataset

    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4, 0, 16], TABLE
    pixels = np.array([[0, 1], [2, 3]], np.uint16)
    shown = read(tmp_path, pixels, VOILUTSequence=[table])
    np.testing.assert_allclose(shown, np.array([[0, 65535], [30000, 100]]) / 65535, atol=2e-5)
    modality = Dataset()
    modality.LUTDescriptor, modality.LUTData, modality.ModalityLUTType = [4, 0, 16], TABLE, "OD"
    shown = read(tmp_path, pixels, ModalityLUTSequence=[modality])
    np.testing.assert_allclose(shown, np.array([[0, 65535], [30000, 100]]) / 65535, atol=2e-5)


@pytest.mark.parametrize(
    ("tags", "named"),
    [
        ({"WindowCenter": "1000", "WindowWidth": "0"}, "WindowWidth"),
        ({"WindowCenter": "1000", "WindowWidth": "-5"}, "WindowWidth"),
        ({"WindowCenter": "1000", "WindowWidth": "0.5"}, "WindowWidth"),
        ({"WindowCenter": "1000", "WindowWidth": "0", "VOILUTFunction": "SIGMOID"}, "WindowWidth"),
        ({"WindowCenter": "1000", "WindowWidth": ""}, "WindowWidth"),
        ({"WindowCenter": "1000"}, "WindowWidth"),
        ({"WindowWidth": "1000"}, "WindowCenter"),
        (
            {"WindowCenter": "1000", "WindowWidth": "10", "VOILUTFunction": "GAMMA"},
            "VOILUTFunction",
        ),
        ({"RescaleSlope": "2"}, "RescaleIntercept"),
        ({"RescaleSlope": "", "RescaleIntercept": "5"}, "RescaleSlope"),
        ({"RescaleSlope": "0", "RescaleIntercept": "5"}, "RescaleSlope"),
        ({"HighBit": 15}, "HighBit"),
        ({"BitsStored": None}, "BitsStored"),
        ({"PixelRepresentation": None}, "PixelRepresentation"),
        ({"PhotometricInterpretation": ""}, "PhotometricInterpretation"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"PhotometricInterpretation": "YBR_FULL"}, "YBR_FULL"),
        ({"PresentationLUTShape": "INVERSE"}, "PresentationLUTShape"),
        ({"Rows": None}, "Rows"),
        ({"SamplesPerPixel": 3}, "one grey image"),
        ({"NumberOfFrames": 2}, "one grey image"),
        ({"PixelData": None}, "PixelData"),
    ],
)
def test_what_no_viewer_can_show_is_refused_by_its_tag(tmp_path, tags, named):
    with pytest.raises(FieldError, match=named) as refused:
        read(tmp_path, **tags)
    assert refused.value.field.partition(": ")[0] == "1.dcm"
