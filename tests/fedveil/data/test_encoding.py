"""CSV files that are not UTF-8 are read as pandas reads them once their encoding is named."""

import pandas as pd
import pytest

from fedveil.data import load
from fedveil.errors import FieldError
from fedveil_lab.config.first import read_columns

TEXT = "age,place,ill\n30,K\u00f6ln,0\n40,M\u00fcnchen,1\n50,K\u00f6ln,1\n"


@pytest.mark.parametrize(
    "encoding", ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp850"]
)
def test_texts_are_those_that_pandas_reads(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes(TEXT.encode(encoding))
    about, _ = read_columns(path, "", "", "", encoding=encoding)
    assert about["encoding"] == encoding
    assert about["columns"]["place"] == sorted(set(pd.read_csv(path, encoding=encoding)["place"]))
    assert load(**about).x.shape == (3, 3)


def test_a_byte_order_mark_needs_no_key(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(TEXT.encode("utf-8-sig"))
    about, _ = read_columns(path, "", "", "")
    assert ("encoding" in about, set(about["columns"])) == (False, {"age", "place"})


@pytest.mark.parametrize("encoding", ["utf8000", "rot13", "hex", "undefined", 7, "utf-16"])
def test_what_is_no_encoding_of_the_file_is_refused_by_its_key(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes(TEXT.encode("cp1252") + b"x")
    with pytest.raises(FieldError, match=r"encoding|utf"):
        load(
            "table",
            path=path,
            target="ill",
            classes=2,
            scale="none",
            columns=["age"],
            encoding=encoding,
        )
