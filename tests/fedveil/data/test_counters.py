"""Numbers that are no amounts: counters of rows and persons, ids of many digits, and where each begins."""

import pandas as pd
import pytest

from fedveil_lab.config.first import read_columns


def left_out(tmp_path, values):
    frame = pd.DataFrame({"v": values, "age": [20 + i * 7 % 31 for i in range(len(values))]})
    frame["ill"] = [i % 2 for i in range(len(values))]
    frame.to_csv(tmp_path / "t.csv", index=False)
    return read_columns(tmp_path / "t.csv", "", "", "")[1].get("v", "")


COUNTERS = {
    "each row once": (list(range(100, 130)), "counter"),
    "each row once, in any order": ([100 + i * 7 % 30 for i in range(30)], "counter"),
    "persons of two rows": ([i // 2 for i in range(60)], "counter"),
    "persons of two rows, not from 0": ([500 + i // 2 for i in range(60)], "counter"),
    "few kinds": ([i // 20 for i in range(60)], ""),
    "21 kinds": ([i // 3 for i in range(63)], "counter"),
    "20 kinds": ([i // 3 for i in range(60)], ""),
    "a step of two": ([2 * (i // 2) for i in range(60)], ""),
    "a step back": ([*range(40), *range(20)], ""),
    "few rows": (list(range(20)), ""),
    "one row more": (list(range(21)), "counter"),
    "a gap": ([*range(29), 90], ""),
}


@pytest.mark.parametrize("name", COUNTERS)
def test_what_counts_is_no_input_and_what_does_not_is_one(tmp_path, name):
    values, kind = COUNTERS[name]
    assert left_out(tmp_path, values) == kind


@pytest.mark.parametrize(
    ("largest", "kind"), [(2**53 - 1, ""), (2**53, "id"), (2**60, "id"), (-(2**53), "id")]
)
def test_whole_numbers_of_more_digits_than_a_float_has_are_ids(tmp_path, largest, kind):
    assert left_out(tmp_path, [largest if i == 4 else i * i % 17 for i in range(12)]) == kind


@pytest.mark.parametrize(
    ("column", "kind"), [("practice", "site"), ("years of practice", ""), ("individual", "person")]
)
def test_one_list_of_words_says_what_a_column_is(tmp_path, column, kind):
    frame = pd.DataFrame(
        {column: [i % 4 for i in range(30)], "age": [20 + i * 7 % 11 for i in range(30)]}
    )
    frame["ill"] = [i % 2 for i in range(30)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_columns(tmp_path / "t.csv", "", "", "")[1].get(column, "") == kind
    frame[column] += 0.5
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_columns(tmp_path / "t.csv", "", "", "")[1].get(column, "") == ""
