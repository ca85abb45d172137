"""`fedveil init` names an input that tells the target, ids under a person's name, and targets that are amounts."""

import numpy as np
import pytest

from fedveil.errors import FieldError
from fedveil_lab.config.columns import read_off

pd = pytest.importorskip("pandas")

N = 120
DRAWN = np.random.default_rng(3)
ILL = DRAWN.permutation(np.arange(N) % 2)
AGE = DRAWN.integers(20, 90, N)


def read(tmp_path, columns, target="ill"):
    frame = pd.DataFrame({"age": AGE, **columns, **({} if target in columns else {"ill": ILL})})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return read_off(tmp_path / "t.csv", target, "", "")


def leaking(reading, target="ill"):
    said = [
        line for line in reading.said if "tells the target" in line or "scale and offset" in line
    ]
    return [line.split("'")[1] for line in said]


TELLING = {
    "texts": np.where(ILL == 1, "back", "home"),
    "more texts than classes": np.where(ILL == 1, np.where(AGE > 50, "died", "back"), "home"),
    "numbers with a limit": ILL * 5 + DRAWN.normal(size=N).round(3),
    "numbers that fall": 3 - ILL * 5 + DRAWN.uniform(0, 1, N).round(3),
    "whole numbers": ILL * 3 + AGE % 3,
    "all but one": np.where(np.arange(N) == 7, 1 - ILL, ILL),
}
SILENT = {
    "chance": DRAWN.integers(0, 2, N),
    "a strong sign": ILL * 2 + DRAWN.normal(size=N).round(3),
    "three in a hundred": np.where(np.arange(N) % 33 == 0, 1 - ILL, ILL),
}


@pytest.mark.parametrize("kind", TELLING)
def test_an_input_that_tells_the_target_is_named(tmp_path, kind):
    assert leaking(read(tmp_path, {"v": TELLING[kind]})) == ["v"]


@pytest.mark.parametrize("kind", SILENT)
def test_an_input_that_does_not_is_not(tmp_path, kind):
    assert leaking(read(tmp_path, {"v": SILENT[kind]})) == []


def test_gaps_do_not_hide_it(tmp_path):
    gaps = np.where(np.arange(N) % 5 == 0, None, TELLING["texts"])
    frame = pd.DataFrame({"age": AGE, "v": gaps, "ill": ILL})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert leaking(read_off(tmp_path / "t.csv", "ill", "", "", missing="indicator")) == ["v"]


def test_a_rare_class_is_not_told_by_saying_the_other(tmp_path):
    rare = (np.arange(N) < 2).astype(int)
    assert leaking(read(tmp_path, {"v": np.arange(N) % 3, "rare": rare}, "rare"), "rare") == []


def test_three_classes_in_the_order_of_a_number(tmp_path):
    grade = DRAWN.permutation(np.arange(N) % 3)
    order = np.array([2, 0, 1])[grade] * 10 + DRAWN.uniform(0, 9, N).round(3)
    assert leaking(read(tmp_path, {"v": order, "grade": grade}, "grade"), "grade") == ["v"]


@pytest.mark.parametrize(("factor", "named"), [(1.19, ["v"]), (-2.0, ["v"])])
def test_a_number_that_is_the_target_in_other_money_is_named(tmp_path, factor, named):
    cost = DRAWN.lognormal(8, 1, N).round(2)
    assert (
        leaking(read(tmp_path, {"v": (cost * factor + 3).round(4), "cost": cost}, "cost"), "cost")
        == named
    )
    assert (
        leaking(read(tmp_path, {"v": cost + DRAWN.normal(0, 500, N), "cost": cost}, "cost"), "cost")
        == []
    )


@pytest.mark.parametrize("name", ["pid", "PID", "mrn", "PatID", "fallnr"])
def test_a_persons_number_is_no_input(tmp_path, name):
    assert read(tmp_path, {name: DRAWN.integers(1000, 1060, N)}).left_out == {name: "person"}


AMOUNTS = DRAWN.permutation(np.arange(N)) * 37 + 800 + DRAWN.integers(0, 30, N)


def test_whole_numbers_that_are_unique_are_an_amount_if_they_were_chosen(tmp_path):
    frame = pd.DataFrame({"age": AGE, "cost": AMOUNTS})
    frame.to_csv(tmp_path / "t.csv", index=False)
    chosen = read_off(tmp_path / "t.csv", "cost", "", "")
    assert chosen.about["target_range"] == [int(AMOUNTS.min()), int(AMOUNTS.max())]
    assert any("'cost'" in line for line in chosen.said)
    with pytest.raises(FieldError, match="target = 'cost'"):
        read_off(tmp_path / "t.csv", "", "", "")  # the last column, which nobody chose


@pytest.mark.parametrize("name", ["patient_id", "MRN", "key"])
def test_what_is_called_like_an_id_is_no_target(tmp_path, name):
    for values in (AMOUNTS, DRAWN.integers(0, 90, N)):
        pd.DataFrame({"age": AGE, name: values}).to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(FieldError, match=f"target = '{name}'"):
            read_off(tmp_path / "t.csv", name, "", "")


def test_a_fall_is_a_target_although_a_case_is_called_so(tmp_path):
    assert read(tmp_path, {"fall": ILL}, "fall").about["classes"] == 2


def test_numbers_that_are_classes_stand_by_size(tmp_path):
    reading = read(tmp_path, {"stage": DRAWN.choice([2, 10, 9], N)}, "stage")
    assert reading.about["classes"] == ["2", "9", "10"]
    assert any("target_range" in line for line in reading.said)


def test_categories_of_digits_in_a_typed_file_are_no_amounts(tmp_path):
    pytest.importorskip("pyarrow")
    job = DRAWN.integers(1, 5, N)
    typed = {
        "job": pd.Categorical(job.astype(str)),
        "grade": pd.Categorical(job),
        "said": job.astype(str),
    }
    pd.DataFrame({"age": AGE, **typed, "ill": ILL}).to_parquet(tmp_path / "t.parquet")
    columns = read_off(tmp_path / "t.parquet", "ill", "", "").about["columns"]
    assert columns["job"] == ["1", "2", "3", "4"]
    assert columns["grade"] == columns["said"] == [1, 4]
