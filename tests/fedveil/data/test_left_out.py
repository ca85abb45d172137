"""Natural clients that take no part are said, with how many examples go with them; a row index is no input."""

import pandas as pd
import pytest
import torch

from fedveil.data import federate, from_torch, holdings, load, warnings_of


def test_clients_below_min_size_are_named():
    pairs = torch.utils.data.TensorDataset(torch.rand(23, 2), torch.arange(23) % 2)
    wards = ["north"] * 10 + ["south"] * 10 + ["small"] * 3
    dataset = from_torch(pairs, clients=wards)

    def said(**options):
        clients = federate(dataset, seed=0, **options)
        return [
            line for line in warnings_of(holdings(clients, dataset), dataset) if "left out" in line
        ]

    [line] = said(clients="natural", min_size=5)
    assert "small" in line
    assert "3 examples" in line
    assert said(clients=2, scheme="natural")
    assert not said(clients="natural")
    assert not said(clients=4)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_row_index_that_was_reset_into_a_column_is_no_input(tmp_path, suffix, times):
    """`reset_index` calls it "index", and "level_0" the second time; rows sorted by outcome tell the label by it."""
    frame = pd.DataFrame({"age": [30, 40, 50, 60] * 5, "ill": [0] * 10 + [1] * 10})
    frame = frame[frame["age"] > 30]
    for _ in range(times):
        frame = frame.reset_index()
    path = tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    how = {"path": str(path), "target": "ill", "classes": 2, "scale": "none"}
    assert load("table", **how).x.tolist() == [[age] for age in frame["age"]]
    assert load("table", **how, columns=["index"]).x.tolist() == [[row] for row in frame["index"]]


def test_a_column_that_is_called_index_and_numbers_no_rows_is_an_input(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("index,ill\n" + "3,0\n7,1\n3,1\n" * 4)
    made = load("table", path=str(path), target="ill", classes=2, scale="none")
    assert made.x.tolist() == [[3.0], [7.0], [3.0]] * 4
