"""A column is one thing: target, site, person, or input; ids are no targets, and times written as numbers are said."""

import numpy as np
import pandas as pd
import pytest

from fedveil.data import load
from fedveil.errors import FieldError
from fedveil_lab.config.columns import read_off
from fedveil_lab.config.first import read_columns

N = 30


@pytest.fixture
def ward(tmp_path):
    frame = pd.DataFrame(
        {
            "who": [f"p{i}" for i in range(N)],
            "ward": ["a", "b"] * (N // 2),
            "age": np.arange(N) * 7 % 11,
        }
    )
    frame["ill"] = [0, 0, 1] * (N // 3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("target", "person", "site"), [("ward", "", "ward"), ("who", "who", ""), ("ill", "who", "who")]
)
def test_a_column_in_two_roles_is_refused(ward, target, person, site):
    column = {"ward": "ward", "who": "who", "ill": "who"}[target]
    with pytest.raises(FieldError, match=column):
        read_columns(ward, target, person, site)
    options = {
        "scale": "none",
        "columns": ["age"],
        "classes": ["a", "b"] if target == "ward" else 2,
    }
    with pytest.raises(FieldError, match=column):
        load("table", path=ward, target=target, person=person, client_column=site, **options)


def test_arrays_have_one_role_each(tmp_path):
    arrays = {"x": np.zeros((4, 2), "float32"), "y": np.array([0, 1, 0, 1]), "who": np.arange(4)}
    np.savez(tmp_path / "a.npz", **arrays)
    for roles in ({"person": "y"}, {"client_array": "y"}, {"client_array": "who", "person": "who"}):
        with pytest.raises(FieldError, match=r"data\."):
            load("npz", path=tmp_path / "a.npz", **roles)


def test_a_site_in_the_last_column_is_not_the_target(ward):
    frame = pd.read_csv(ward)[["who", "age", "ill", "ward"]]
    frame.to_csv(ward, index=False)
    assert read_columns(ward, "", "", "ward")[0]["target"] == "ill"


@pytest.mark.parametrize(
    "values",
    [
        [f"p{i}" for i in range(N)],
        list(range(N)),
        [10_000 + 37 * i for i in range(N)],
        [f"{i:04d}" for i in range(N)],
        [f"p{i}" for i in range(12)],
        list(range(12)),
    ],
)
def test_what_is_another_in_each_row_is_no_target(tmp_path, values):
    pd.DataFrame({"age": np.arange(len(values)) % 7, "v": values}).to_csv(
        tmp_path / "t.csv", index=False
    )
    with pytest.raises(FieldError, match=r"target = 'v'"):
        read_columns(tmp_path / "t.csv", "v", "", "")


def test_an_amount_with_a_point_is_a_target(tmp_path):
    pd.DataFrame({"age": np.arange(N) % 7, "v": 100.0 * np.arange(N) + 5}).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert "target_range" in read_columns(tmp_path / "t.csv", "v", "", "")[0]


TIMES = {
    "seconds": 1.5e9 + 86_400 * np.arange(N) % 7e6,
    "milliseconds": (1.5e9 + 77_777 * (np.arange(N) % 9)) * 1e3,
    "20240131": np.array([20240101 + i % 9 for i in range(12)]),
    "31012024": np.array([1012024 + 1_000_000 * (i % 9) for i in range(12)]),
    "202401": np.array([202401 + i % 9 for i in range(N)]),
}


@pytest.mark.parametrize("kind", TIMES)
def test_times_that_are_written_as_numbers_are_said(tmp_path, kind):
    values = TIMES[kind]
    pd.DataFrame(
        {"t": values, "age": np.arange(len(values)) % 5, "ill": np.arange(len(values)) % 2}
    ).to_csv(tmp_path / "t.csv", index=False)
    assert any(
        "'t'" in line and kind in line for line in read_off(tmp_path / "t.csv", "ill", "", "").said
    )


def test_spreadsheet_days_are_said_by_their_name_and_amounts_are_not(tmp_path):
    columns = {
        "admission_date": 45_000 + np.arange(N) % 9,
        "cost": 45_000 + np.arange(N) % 9,
        "ill": np.arange(N) % 2,
    }
    pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    said = [
        line for line in read_off(tmp_path / "t.csv", "ill", "", "").said if "looks like" in line
    ]
    assert len(said) == 1
    assert "admission_date" in said[0]


@pytest.mark.parametrize("column", ["v", "y"])
def test_infinity_is_shown_as_what_it_is(tmp_path, column):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"v": np.linspace(0, 1, N), "y": np.linspace(2, 3, N)})
    frame.loc[4, column] = -np.inf
    frame.to_parquet(tmp_path / "t.parquet")
    for attempt in (
        lambda: read_columns(tmp_path / "t.parquet", "y", "", ""),
        lambda: load(
            "table", path=tmp_path / "t.parquet", target="y", target_range=[0, 9], scale="none"
        ),
    ):
        with pytest.raises(FieldError, match=rf"row 5, column {column} = '-inf'"):
            attempt()
