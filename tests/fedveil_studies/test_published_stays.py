"""Stays of diabetic patients: what is made of the table, and whose stays choose, train and measure."""

import csv
import gzip

import pytest
import torch

from fedveil.data import load
from fedveil.errors import FieldError
from fedveil.gdp import epsilon_of_mu
from fedveil_studies.data import readmission
from fedveil_studies.data.readmission import CODES, NEEDED, NUMBERS, VISITS, load_readmission
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.published import CAP, study


@pytest.fixture
def stays(tmp_path, monkeypatch):
    """Four patients with 3, 1, 2 and 1 stays, of which the third one's last ended in a hospice."""
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setattr(readmission, "require_version", lambda *given: None)
    rows = []
    for place, patient in enumerate((10, 10, 2, 10, 33, 33, 4)):
        row = dict.fromkeys(NEEDED, "") | dict.fromkeys((*NUMBERS, *VISITS), "1")
        row |= {
            "patient_nbr": str(patient),
            "age": "[70-80)",
            "diag_1": ("250.8", "V57", "428", "")[place % 4],
        }
        row |= {
            "readmitted": ("<30", "NO", ">30")[place % 3],
            "number_inpatient": "9",
            "discharge_disposition_id": "1",
        }
        rows.append(row)
    rows[5]["discharge_disposition_id"] = "13"
    with gzip.open(tmp_path / "diabetes_130_us_hospitals.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, [*NEEDED, "weight"], restval="")
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path


def test_stays_by_hand(stays):
    data = load_readmission(person="patient")
    assert data.y.tolist() == [1, 0, 0, 1, 0, 1]
    assert data.group.bincount().tolist() == [1, 1, 3, 1]
    torch.testing.assert_close(data.x.norm(dim=1), torch.ones(6))
    ratio = data.x[0] / data.x[0, 0]  # the decade from 70: 10 / 15
    assert ratio[8].item() == pytest.approx(1.0 / (10 / 15))  # nine earlier stays count as five
    diabetes = 1 + len(NUMBERS) + len(VISITS) + sum(map(len, CODES.values())) + 3
    assert (data.x[:, diabetes] > 0).tolist() == [True, False, False, False, True, False]
    assert load_readmission().group is None
    assert load_readmission(person="patient", most=1).group.bincount().tolist() == [1, 1, 1, 1]


def test_who_chooses_settings_is_in_no_silo(stays, monkeypatch):
    monkeypatch.setattr(readmission, "tuning_patients", lambda patients: ["10", "4"])
    tuning, rest = (load_readmission(person="patient", part=part) for part in ("tuning", "rest"))
    assert (len(tuning.x), len(rest.x)) == (4, 2)


def test_a_missing_column_is_refused(stays):
    with gzip.open(stays / "diabetes_130_us_hospitals.csv.gz", "wt") as file:
        file.write("patient_nbr,age\n1,[0-10)\n")
    with pytest.raises(FieldError, match="insulin"):
        load_readmission()


@pytest.mark.data
@pytest.mark.parametrize("setting", ["sum", "secure", "alone"])
def test_lines_of_one_epsilon_promise_a_patient_the_same(setting):
    planned = Reproduction(study, Choices(seed=0, seeds=1))
    for row, epsilon in (("8", 8.0), ("half", 0.5)):
        for scenario, stays_of_one in (("stays", 1), ("group", CAP)):
            config = planned.cell(scenario, row, setting, 0).config
            assert config.data.options["part"] == "rest"
            side = config.privacy.build(config.aggregator).client
            assert side.unit == ("person" if scenario == "stays" else "record")
            assert config.data.options.get("most", 0) == (0 if scenario == "stays" else CAP)
            total = config.rounds**0.5 / side.multiplier * stays_of_one
            assert epsilon_of_mu(total, 1e-5) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.data
def test_the_real_stays():
    data, rest = (
        load("readmission", person="patient"),
        load("readmission", person="patient", part="rest", most=CAP),
    )
    assert (len(data.x), int(data.group.max()) + 1, data.x.shape[1]) == (99_343, 69_990, 51)
    assert int(data.y.sum()) == 11_314
    assert (int(rest.group.max()) + 1, int(rest.group.bincount().max())) == (55_992, CAP)
