"""A promise for a client is about all its data: a site that is spelt in two ways is not two clients."""

import numpy as np
import pytest
import torch

from fedveil.data import from_torch, load
from fedveil.data.labels import natural_clients
from fedveil.errors import FieldError

pytest.importorskip("pandas")


def read(tmp_path, sites):
    rows = [f"{30 + i},{site},{i % 2}" for i, site in enumerate(sites * 3)]
    (tmp_path / "t.csv").write_text("\n".join(["age,site,ill", *rows]), encoding="utf-8")
    how = {
        "target": "ill",
        "classes": 2,
        "columns": ["age"],
        "scale": "none",
        "client_column": "site",
    }
    return load("table", path=tmp_path / "t.csv", **how)


PAIRS = [
    ("Ward 1", "ward 1 "),
    ("Ward 1", "Ward  1"),
    ("01", "1"),
    ("1", "1.0"),
    ("1e1", "10"),
    ("K\u00f6ln", "Ko\u0308ln"),
    ("\uff21", "a"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_sites_that_may_be_one_or_two_are_refused_by_their_row(tmp_path, one, other):
    with pytest.raises(FieldError, match=r"row 3 \(line 4\), column site"):
        read(tmp_path, [one, "west", other])
    pairs = torch.utils.data.TensorDataset(torch.rand(3, 2), torch.tensor([0, 1, 0]))
    with pytest.raises(FieldError, match=r"clients\[2\]"):
        from_torch(pairs, clients=[one, "west", other])


def test_sites_that_a_spreadsheet_rounded_are_refused_by_their_row(tmp_path):
    with pytest.raises(FieldError, match=r"row 2 \(line 3\), column site"):
        read(tmp_path, ["north", "1.23E+15", "west"])


@pytest.mark.parametrize(
    "gap", ["", " ", "NA", "?", "-", "unknown", "Unknown", "UNBEKANNT", "None", "nan"]
)
def test_a_site_that_is_missing_is_refused_by_its_row(tmp_path, gap):
    with pytest.raises(FieldError, match=r"row 2 \(line 3\), column site"):
        read(tmp_path, ["north", gap, "west"])
    pairs = torch.utils.data.TensorDataset(torch.rand(3, 2), torch.tensor([0, 1, 0]))
    with pytest.raises(FieldError, match=r"clients\[1\]"):
        from_torch(pairs, clients=["north", gap, "west"])
    with pytest.raises(FieldError, match=r"people\[1\]"):
        from_torch(pairs, people=["ann", gap, "bob"])


def test_masked_sites_are_missing():
    with pytest.raises(FieldError):
        natural_clients("clients", np.ma.masked_equal([1, 2, 1], 2), 3)


def test_other_sites_are_clients(tmp_path):
    assert read(tmp_path, ["010", "020", "100"]).owners == ("010", "020", "100")
