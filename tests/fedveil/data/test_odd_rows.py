"""Rows and texts as spreadsheets leave them: sums, second headers, quotes, unseen signs, names spelt twice."""

import shlex
import tomllib

import numpy as np
import pandas as pd
import pytest

from fedveil.data import load
from fedveil.data.values import plain_form
from fedveil.errors import FieldError
from fedveil_lab.config.columns import read_off
from fedveil_lab.config.first import first_config, read_columns

N = 30
AGE, CRP, ILL = 40 + np.arange(N) * 7 % 11, 1.5 + np.arange(N) % 7, np.arange(N) % 2


def table(tmp_path, below="", above="", **columns):
    frame = pd.DataFrame({"age": AGE, "crp": CRP, **columns, "ill": ILL})
    header, rest = frame.to_csv(index=False).split("\n", 1)
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{above}{rest}{below}")
    return path


@pytest.mark.parametrize(
    ("below", "above", "place"),
    [
        (f"{AGE.sum()},{CRP.sum()},{ILL.sum()}\n", "", "row 31"),
        (f"55,{CRP.sum()},1\n", "", "row 31"),
        ("", "years,mg/l,0/1\n", "row 1"),
        ("", "years,,\n", "row 1"),
        ("", "age,crp,ill\n", "row 1"),
        (",,\n", "", "row 31"),
    ],
)
def test_a_row_that_is_no_example_is_refused_by_its_place(tmp_path, below, above, place):
    with pytest.raises(FieldError, match=rf"{place}\b"):
        read_columns(table(tmp_path, below, above), "", "", "")


@pytest.mark.parametrize("word", ["Total", "summe", "MEAN"])
def test_a_last_row_of_totals_is_refused_by_its_word(tmp_path, word):
    sex = ["f", "m"] * (N // 2)
    path = table(tmp_path, sex=sex)
    path.write_text(path.read_text() + f"45,3.5,{word},1\n")
    with pytest.raises(FieldError, match="row 31"):
        read_columns(path, "", "", "")
    assert (
        "sex"
        in read_columns(table(tmp_path, sex=[*sex[:-2], word, word]), "", "", "")[0]["columns"]
    )  # a category


@pytest.mark.parametrize("written", ['"{}"', "'{}'", "'{}", "={}*2", '="0{}"', "{}\u200b"])
def test_numbers_in_quotes_formulas_and_beside_unseen_signs_are_refused(tmp_path, written):
    path = table(tmp_path)
    rows = [f"{a};{written.format(a % 9)};{i}" for a, i in zip(AGE, ILL, strict=True)]
    path.write_text("age;v;ill\n" + "\n".join(rows).replace(';"', '; "'))
    with pytest.raises(FieldError, match="column v"):
        read_columns(path, "", "", "")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("St. Mary", "St Mary"),
        ("Ward-1", "ward 1"),
        ("ward_1", "Ward 1"),
        ("St Mary's", "St Marys"),
        ("Nord", "Nord\u200b"),
        ("Nord", '"Nord"'),
        ("K\u00f6ln", "Koeln"),
        ("Z\u00fcrich", "Zurich"),
    ],
)
def test_a_site_that_is_spelt_in_two_ways_is_refused(tmp_path, one, other):
    path = table(tmp_path, hospital=[one, other, "West"] * (N // 3))
    options = {"scale": "none", "columns": ["age"], "client_column": "hospital"}
    with pytest.raises(FieldError, match="hospital"):
        load("table", path=path, target="ill", classes=2, **options)


@pytest.mark.parametrize(
    ("one", "other"),
    [("A+", "A-"), ("1-1", "11"), ("A-1", "A1"), ("<50", ">50"), ("-1", "1"), ("1.5", "1-5")],
)
def test_names_that_are_two_stay_two(one, other):
    assert plain_form(one) != plain_form(other)


def test_a_target_without_two_values_is_refused_and_a_class_of_one_row_is_said(tmp_path):
    path = table(tmp_path)
    frame = pd.read_csv(path)
    frame.assign(ill=1).to_csv(path, index=False)
    with pytest.raises(FieldError, match="target"):
        read_columns(path, "", "", "")
    frame.assign(ill=[*ILL[:-1], 4]).to_csv(path, index=False)
    assert any("'4'" in line for line in read_off(path, "", "", "").said)


@pytest.mark.parametrize(
    ("codes", "said"), [((0, 1, 9), True), ((1, 2, 3, 4, 9), True), (range(10), False)]
)
def test_a_nine_far_above_the_others_is_said(tmp_path, codes, said):
    path = table(tmp_path, grade=[codes[i % len(codes)] for i in range(N)])
    assert any("'grade'" in line for line in read_off(path, "", "", "").said) == said


def test_what_is_to_be_written_can_be_written_as_it_stands(tmp_path):
    path = tmp_path / "t.csv"
    columns = {
        "blood sugar": [-999 if i % 9 == 0 else 80 + i for i in range(N)],
        "patient id": np.arange(N) // 2,
    }
    pd.DataFrame({**columns, "ill": ILL}).to_csv(path, index=False)
    [said] = [line for line in read_off(path, "", "", "").said if "-999" in line]
    line = said.split("write ")[1].split(" in [data.missing]")[0]
    assert tomllib.loads(line) == {"blood sugar": {"indicator": True, "marks": [-999]}}
    _, told = first_config("t", str(path), 3, "record")
    [said] = [line for line in told if "patient" in line]
    assert tomllib.loads(said.split("'s id: ")[1].split(" in [data]")[0]) == {
        "person": "patient id"
    }
    assert shlex.split(said.split("(")[1].rstrip(")"))[-1] == "patient id"
