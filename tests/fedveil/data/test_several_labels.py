"""Tables whose target is a list: several labels of one example, from parquet and Hugging Face, in `init` and `load`."""

import tomllib

import numpy as np
import pandas as pd
import pytest

from fedveil.data import load
from fedveil.errors import FieldError
from fedveil_lab.config import parse
from fedveil_lab.config.first import first_config, read_columns
from fedveil_lab.runs.runner import run

pytest.importorskip("pyarrow")
NAMES = ["anaemia", "cough", "fever"]
X = np.random.default_rng(0).normal(size=(60, 3))
HELD = (X > 0).astype(int)
TEXTS = [[name for name, one in zip(NAMES, row, strict=True) if one] for row in HELD]
NUMBERS = [[place for place, one in enumerate(row) if one] for row in HELD]


def table(tmp_path, labels):
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    frame["labels"] = labels
    frame.to_parquet(tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


@pytest.mark.parametrize(("labels", "classes"), [(TEXTS, NAMES), (NUMBERS, 3), (HELD.tolist(), 3)])
def test_labels_are_those_that_the_lists_name(tmp_path, labels, classes):
    about, _ = read_columns(table(tmp_path, labels), "", "", "")
    assert about["classes"] == classes
    data = load(**about)
    assert (data.classes, data.outputs, data.y.tolist()) == (0, 3, HELD.astype(float).tolist())
    declared = load(**{**about, "classes": NAMES[::-1]}) if classes == NAMES else data
    assert (
        declared.y.tolist() == (HELD[:, ::-1] if classes == NAMES else HELD).astype(float).tolist()
    )


@pytest.mark.parametrize("protect", ["client", "record"])
def test_a_first_file_trains_and_measures_each_label(tmp_path, protect):
    text, said = first_config("several", str(table(tmp_path, TEXTS)), 3, protect)
    assert any("any of" in line for line in said)
    values = run(
        parse({**tomllib.loads(text), "rounds": 2, "metrics": ["exact_match", "auc[each]"]})
    ).values
    assert {"exact_match", "auc[0]", "auc[1]", "auc[2]"} <= set(values["metrics"])


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ([*TEXTS[:7], None, *TEXTS[8:]], "row 8"),
        ([*TEXTS[:7], ["NA"], *TEXTS[8:]], "row 8"),
        ([*NUMBERS[:7], [1, 1], *NUMBERS[8:]], "row 8"),
        ([*NUMBERS[:7], [-1], *NUMBERS[8:]], "-1"),
        ([["fever"]] * 60, "two labels"),
        ([[0, 1], [1, 0]] * 30, "row 1"),
        ([[0.5, 1.5]] * 60, "row 1"),
    ],
)
def test_what_is_no_list_of_labels_is_refused(tmp_path, labels, place):
    with pytest.raises(FieldError, match=place):
        load(**read_columns(table(tmp_path, labels), "", "", "")[0])


def test_a_label_that_was_not_declared_is_refused_by_its_row(tmp_path):
    path = table(tmp_path, [*TEXTS[:7], ["coughs"], *TEXTS[8:]])
    with pytest.raises(FieldError, match=r"row 8.*coughs"):
        load("table", path=path, target="labels", classes=NAMES, scale="none")


def test_lists_of_named_classes_of_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    kinds = {name: datasets.Value("float64") for name in "uvw"}
    features = datasets.Features(
        {**kinds, "labels": datasets.Sequence(datasets.ClassLabel(names=NAMES))}
    )
    columns = {name: X[:, place].tolist() for place, name in enumerate("uvw")} | {"labels": NUMBERS}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "hf")
    data = load("huggingface", path=tmp_path / "hf", target="labels", scale="none")
    assert data.y.tolist() == HELD.astype(float).tolist()
    assert all(name in data.note for name in NAMES)
