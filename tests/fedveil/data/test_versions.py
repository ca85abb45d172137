"""The checksum of a set's contents: it follows every value and no way of writing them down."""

import numpy as np
import pytest

from fedveil.data.versions import content_of, require_version
from fedveil.errors import FieldError

TABLE = {"age": np.array([63.0, 67.0]), "centre": np.array(["va", "cleveland"], dtype=object)}
ARRAYS = {"images": np.arange(12, dtype=np.uint8).reshape(3, 2, 2)}


def test_a_table_is_known_however_its_file_is_written():
    other = {"centre": ["va", "cleveland"], "age": np.array([63, 67], dtype=np.float32)}
    assert content_of(other) == content_of(TABLE)


@pytest.mark.parametrize(
    "other",
    [
        {**TABLE, "age": np.array([63.0, 68.0])},
        {**TABLE, "age": np.array([67.0, 63.0])},
        {**TABLE, "age": np.array([63.0, np.nan])},
        {**TABLE, "centre": np.array(["vac", "leveland"], dtype=object)},
        {"years": TABLE["age"], "centre": TABLE["centre"]},
        {"age": TABLE["age"]},
    ],
)
def test_another_value_order_name_or_column_is_seen(other):
    assert content_of(other) != content_of(TABLE)


def test_every_byte_of_an_array_its_shape_and_type_count():
    known = content_of(ARRAYS)
    for place in range(12):
        changed = ARRAYS["images"].copy()
        changed.flat[place] ^= 1
        assert content_of({"images": changed}) != known
    assert content_of({"images": ARRAYS["images"].reshape(12)}) != known
    assert content_of({"images": ARRAYS["images"].astype(np.int16)}) != known
    assert content_of({"images": np.asfortranarray(ARRAYS["images"])}) == known


def test_another_version_is_refused_with_where_the_official_one_is():
    require_version("hearts", "hearts.csv", TABLE, content_of(TABLE), "https://example.org/45")
    with pytest.raises(FieldError, match=r"hearts\.csv.*another version.*https://example\.org/45"):
        require_version("hearts", "hearts.csv", TABLE, "0" * 64, "https://example.org/45")
