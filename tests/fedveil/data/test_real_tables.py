"""Real tables as a new user has them: `init` and the loader agree with pandas, number by number."""

import numpy as np
import pytest

from fedveil.data import load
from fedveil.data.sets import find
from fedveil.errors import FieldError
from fedveil_lab.config.columns import read_off

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("heart_disease_uci_4_centres.csv", {"centre"}),
        ("us_zip_latlon.csv.gz", {"zip"}),
        (
            "cms_providers_geo.csv.gz",
            {"provider_id", "provider_name", "street", "city", "state", "zip", "hrr"},
        ),
        pytest.param(
            "diabetes_130_us_hospitals.csv.gz",
            {"encounter_id", "patient_nbr", "medical_specialty", "diag_1", "diag_2", "diag_3"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_number_is_the_one_that_pandas_reads(name, left_out):
    path = find(name)
    if path is None:
        pytest.skip(f"{name} is not here")
    frame = pd.read_csv(path, low_memory=False)
    found = read_off(path, "", "", "", missing="indicator")
    assert set(found.left_out) >= left_out - {"centre"}
    x, place = load(**found.about).x.numpy(), 0
    for column, declared in found.about["columns"].items():
        width = 1 if not isinstance(declared[0], str) else len(declared)
        block, indicated = x[:, place : place + width], column in found.about.get("missing", {})
        gaps = frame[column].isna().to_numpy()
        if width == 1 and not isinstance(declared[0], str):
            low, high = declared
            wanted = np.where(gaps, 0, (frame[column].to_numpy(dtype=float) - low) / (high - low))
            np.testing.assert_allclose(block[:, 0], wanted, atol=1e-5)
        else:
            texts = frame[column].astype(str).str.strip()
            wanted = np.stack([(texts == text) & ~gaps for text in declared], axis=1)
            np.testing.assert_array_equal(block, wanted)
        assert indicated == gaps.any()
        place += width + indicated
        if indicated:
            np.testing.assert_array_equal(x[:, place - 1], gaps)
    assert place == x.shape[1]


def test_gaps_of_real_patients_are_refused_by_their_row():
    path = find("heart_disease_uci_4_centres.csv")
    if path is None:
        pytest.skip("the file is not here")
    frame = pd.read_csv(path)
    first = next(column for column in frame.columns if frame[column].isna().any())
    row = int(np.flatnonzero(frame[first].isna())[0]) + 1
    with pytest.raises(FieldError, match=rf"row {row} \(line {row + 1}\), column {first}"):
        read_off(path, "", "", "centre")
