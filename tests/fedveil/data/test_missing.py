"""Missing values of a table are refused by their row, or become what `data.missing` says."""

import pytest
import torch

from fedveil.data import load
from fedveil.errors import FieldError

pytest.importorskip("pandas")

ROWS = "age,bp,sex,y\n20,100,f,0\nNA,110,m,1\n40,-999,,0\n60,?,unknown,1\n"
COLUMNS = {"age": [0, 100], "bp": [100, 200], "sex": ["f", "m"]}


def read(tmp_path, text=ROWS, **options):
    (tmp_path / "t.csv").write_text(text)
    return load(
        "table", path=tmp_path / "t.csv", target="y", classes=2, **{"columns": COLUMNS, **options}
    )


def test_a_constant_an_indicator_or_both_stand_in(tmp_path):
    marks = {"indicator": True, "value": 150, "marks": [-999]}
    sex = {"indicator": True, "marks": ["unknown"]}
    data = read(tmp_path, missing={"age": "indicator", "bp": marks, "sex": sex})
    wanted = [  # age, missing, bp, missing, f, m, missing
        [0.2, 0, 0.0, 0, 1, 0, 0],
        [0.0, 1, 0.1, 0, 0, 1, 0],
        [0.4, 0, 0.5, 1, 0, 0, 1],
        [0.6, 0, 0.5, 1, 0, 0, 1],
    ]
    torch.testing.assert_close(data.x, torch.tensor(wanted))
    plain = read(
        tmp_path, missing={"age": 50, "bp": marks, "sex": {"value": "f", "marks": ["unknown"]}}
    )
    torch.testing.assert_close(plain.x[:, 0], torch.tensor([0.2, 0.5, 0.4, 0.6]))
    assert plain.x[2:, 3:].tolist() == [[1, 0], [1, 0]] or plain.x[2:, 3:].tolist() == [
        [1, 1, 0],
        [1, 1, 0],
    ]


def test_what_stands_in_is_said(tmp_path):
    both = {
        "age": 50,
        "bp": {"indicator": True, "marks": [-999]},
        "sex": {"value": "f", "marks": ["unknown"]},
    }
    note = read(tmp_path, missing=both).note
    assert "age" in note
    assert "50" in note


@pytest.mark.parametrize(
    ("missing", "place"),
    [
        ({}, "row 2"),
        ({"age": 50}, "row 4 .*column bp"),  # the mark of a gap; -999 is outside the range
        ({"age": 50, "bp": 100}, r"row 3 .*column bp = -999"),
        ({"age": 50, "bp": {"value": 100, "marks": [-999]}}, "row 3 .*column sex"),
        (
            {"age": 50, "bp": {"value": 100, "marks": [-999]}, "sex": "f"},
            "row 4 .*column sex = 'unknown'",
        ),
    ],
)
def test_what_nothing_stands_in_for_is_refused_by_its_row(tmp_path, missing, place):
    with pytest.raises(FieldError, match=place):
        read(tmp_path, missing=missing, outside="refuse")


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ({"agee": 50}, "data.missing.agee"),
        ({"y": 0}, "data.missing.y"),
        ({"age": 500}, "data.missing.age"),
        ({"age": "mean"}, "data.missing.age"),
        ({"age": True}, "data.missing.age"),
        ({"sex": "x"}, "data.missing.sex"),
        ({"age": {"as": 50}}, "data.missing.age.as"),
        ({"age": {"marks": [-999]}}, "data.missing.age"),
        ({"age": {"value": 50, "marks": -999}}, "data.missing.age"),
    ],
)
def test_what_cannot_stand_in_is_refused(tmp_path, missing, field):
    with pytest.raises(FieldError) as refused:
        read(tmp_path, missing=missing)
    assert refused.value.field == field


def test_without_a_declared_range_an_indicator_needs_a_value(tmp_path):
    rest = {"columns": ["age"], "scale": "client"}
    with pytest.raises(FieldError, match="needs a value"):
        read(tmp_path, missing={"age": "indicator"}, **rest)
    data = read(tmp_path, missing={"age": {"value": 30, "indicator": True}}, **rest)
    assert data.x.tolist() == [[20, 0], [30, 1], [40, 0], [60, 0]]
    assert data.local_columns == (0,)


def test_a_declared_text_is_no_gap(tmp_path):
    text = "test,y\nNone,0\nNorm,1\nNone,1\n"
    data = read(tmp_path, text, columns={"test": ["None", "Norm"]})
    assert data.x.tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    "mark", ["NA", "?", "-", ".", "NULL", "none", "nan", "missing", "unknown", " N/A ", "-999"]
)
def test_a_missing_target_is_refused_by_its_row(tmp_path, mark):
    with pytest.raises(FieldError, match="row 2"):
        read(tmp_path, f"age,y\n20,0\n30,{mark}\n40,1\n", columns={"age": [0, 100]})


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 1e300])
def test_a_value_that_no_float32_holds_is_refused_by_its_key(tmp_path, value):
    (tmp_path / "gaps.csv").write_text("age,ill\n30,0\n,1\n40,0\n")
    options = {"target": "ill", "classes": 2, "scale": "none", "missing": {"age": value}}
    with pytest.raises(FieldError, match=r"data\.missing\.age"):
        load(name="table", path=str(tmp_path / "gaps.csv"), **options)
