"""A value of a table is what pandas reads, or it is refused by its row and column; never another number."""

import math
import re
from io import StringIO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil.data import load
from fedveil.data.values import MISSING, PLAIN, STYLES, Style, missing_of, numbers_of, sort_of
from fedveil.errors import FieldError

pd = pytest.importorskip("pandas")

ODD = """1,234 ;12,34,567;1.234;1.234,5;1,234.5;1'234;1\u2019234;1 234;1\u00a0234;1\u202f234;0,5;.5;,5;5.;+5;-5;\u22125
1e5;1E-3;1e5.5;5%;$5;5 \u20ac;5 mg;5mg;(5);5-;0x1F;0b1;1_000;\u0661\u0662;\u00bd;1/2;inf;-inf;Infinity;nan;NaN;NA;N/A
n/a;NULL;null;None;none;?;-;.;--;missing;unknown;<NA>;#N/A;<5;>200;~3;1d5;1.5x10^3;TRUE;yes;2020-01-02;12:30;007;1.0;00;1,2
1.2.3;12,345,67;1,,5; 20 ;-999""".replace("\n", ";").split(";")


def read(tmp_path, text, style=PLAIN, separator=";"):
    (tmp_path / "t.csv").write_text(
        f'v{separator}y\n"{text}"{separator}0\n7{separator}1\n', encoding="utf-8"
    )
    how = {"separator": separator, "decimal": style.decimal, "thousands": style.thousands}
    data = load(
        "table", path=tmp_path / "t.csv", target="y", classes=2, columns=["v"], scale="none", **how
    )
    return float(data.x[0, 0])


def plain(text):
    """As pandas knows it, whose options take one sign: a space and an apostrophe are written in several ways."""
    return re.sub("[\u00a0\u202f]", " ", text).replace("\u2019", "'")


def by_pandas(tmp_path, style, separator=";"):
    thousands = style.thousands or None
    text = plain((tmp_path / "t.csv").read_text(encoding="utf-8"))
    try:
        frame = pd.read_csv(
            StringIO(text), sep=separator, decimal=style.decimal, thousands=thousands
        )
    except ValueError:
        return math.nan
    return float(frame.v[0]) if frame.v.dtype.kind in "if" else math.nan


def agrees(tmp_path, text, style):
    said = ""
    try:
        own = read(tmp_path, text, style)
    except FieldError as refused:
        said = str(refused)
    assert ("row 1" in said and "column v" in said) or own == pytest.approx(
        by_pandas(tmp_path, style), rel=1e-6
    )


@pytest.mark.parametrize("style", STYLES)
def test_odd_texts_are_read_as_pandas_reads_them_or_not_at_all(tmp_path, style):
    rows = [
        [f"v{i}" for i in range(len(ODD))],
        [f'"{plain(text)}"' for text in ODD],
        ["7"] * len(ODD),
    ]
    how = {"sep": ";", "decimal": style.decimal, "thousands": style.thousands or None}
    frame = pd.read_csv(StringIO("\n".join(map(";".join, rows))), **how)
    for i, text in enumerate(ODD):
        own, column = style.number(text), frame[f"v{i}"]
        assert math.isnan(own) or own == pytest.approx(
            float(column[0]) if column.dtype.kind in "if" else math.nan
        )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text("0123456789.,'eE+-%$ \u00a0()x_", min_size=1, max_size=9).filter(
        lambda t: '"' not in t
    ),
    style=st.sampled_from(STYLES),
)
def test_any_text_is_read_as_pandas_reads_it_or_refused(tmp_path, text, style):
    agrees(tmp_path, text, style)


@pytest.mark.parametrize(
    ("text", "style", "number"),
    [
        ("1,234", Style(".", ","), 1234),
        ("12,34,567", Style(".", ","), 1234567),
        ("1.234.567,5", Style(",", "."), 1234567.5),
        ("1'234.5", Style(".", "'"), 1234.5),
        ("1\u2019234", Style(".", "'"), 1234),
        ("1 234,5", Style(",", " "), 1234.5),
        ("1\u202f234", Style(".", " "), 1234),
        ("-1e5", PLAIN, -1e5),
        (" 20 ", PLAIN, 20),
    ],
)
def test_declared_separators_are_read(tmp_path, text, style, number):
    assert read(tmp_path, text, style) == number


@pytest.mark.parametrize(
    "text", ["1,234", "1'234", "1 234", "5%", "$5", "(5)", "0x1F", "\u22125", "<5", "5 mg", "inf"]
)
def test_what_looks_like_a_number_is_refused_with_its_reason(tmp_path, text):
    with pytest.raises(FieldError, match=r"row 1 \(line 2\), column v") as refused:
        read(tmp_path, text)
    assert refused.value.value == text


def test_signs_that_cannot_be_told_apart_are_refused():
    for wrong in ({"decimal": ".", "thousands": "."}, {"decimal": ";"}, {"thousands": "_"}):
        with pytest.raises(FieldError):
            Style(**wrong)


def test_what_pandas_reads_as_missing_is_missing():
    from pandas._libs.parsers import STR_NA_VALUES

    assert STR_NA_VALUES <= MISSING
    values = pd.Series(["NA", " ? ", "unknown", "5", None])
    assert missing_of(values).tolist() == [True, True, False, False, True]
    assert missing_of(values, vague=True).tolist() == [True, True, True, False, True]
    assert missing_of(pd.Series(["5.0", "-999", "-999.0"]), marks=[-999]).tolist() == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("values", "sort"),
    [
        ([1, 2], "numbers"),
        ([True, None], "numbers"),
        (pd.array([1, None], dtype="Int64"), "numbers"),
        (pd.array([True, None], dtype="boolean"), "numbers"),
        (np.array([1, 2], "float16"), "numbers"),
        (pd.Categorical([1, 2]), "numbers"),
        (pd.Categorical(["a", "b"]), "texts"),
        (["a", None], "texts"),
        (["a", 1], "mixed"),
        (pd.date_range("1990", periods=2), "times"),
        (pd.date_range("1990", periods=2, tz="UTC"), "times"),
        (pd.to_timedelta([1, 2], "D"), "times"),
        (list(pd.date_range("1990", periods=2).date), "times"),
        (pd.period_range("2000", periods=2, freq="D"), "times"),
        ([[1], [2]], "other"),
        ([b"x", b"y"], "other"),
        ([{"a": 1}, None], "other"),
        ([None, None], "empty"),
    ],
)
def test_a_column_is_told_by_the_type_of_its_values(values, sort):
    assert sort_of(pd.Series(values)) == sort


def test_numbers_of_every_type_are_the_same_numbers():
    from decimal import Decimal

    for values in (
        [1, 0],
        [True, False],
        [Decimal("1"), Decimal("0")],
        ["1", "0.0"],
        pd.Categorical(["1", "0"]),
    ):
        assert numbers_of(pd.Series(values), PLAIN).tolist() == [1, 0]
    nullable = (
        pd.Series([1, None], dtype="Int64"),
        pd.Series([True, None], dtype="boolean"),
        pd.Series([True, None]),
    )
    for values in nullable:
        np.testing.assert_array_equal(numbers_of(values, PLAIN), [1, np.nan])
