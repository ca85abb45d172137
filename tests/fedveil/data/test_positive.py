"""Which of two classes counts as positive: `data.positive`, and what `fedveil init` writes."""

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

from fedveil.data.sets import DataSet, with_positive
from fedveil.errors import FieldError
from fedveil_lab.config import parse
from fedveil_lab.config.first import first_config
from fedveil_lab.runs import run
from fedveil_lab.runs.deal import deal_out

BREAST = {"name": "breast-cancer", "clients": 3}


def test_the_positive_class_changes_places_with_the_other():
    y = torch.tensor([0, 1, 1, -100])
    given = DataSet(
        name="two",
        x=torch.zeros(4, 1),
        y=y,
        test_y=1 - y[:2],
        classes=2,
        class_names=("ill", "well"),
    )
    assert with_positive(given, "well") is given
    turned = with_positive(given, "ill")
    assert turned.y.tolist() == [1, 0, 0, -100]
    assert turned.test_y.tolist() == [0, 1]
    assert turned.names() == ("well", "ill")
    unnamed = DataSet(name="two", x=torch.zeros(4, 1), y=y, classes=2)
    assert with_positive(unnamed, "0").names() == ("1", "0")


def test_a_name_that_is_none_or_more_than_two_classes_are_refused():
    three = DataSet(name="three", x=torch.zeros(3, 1), y=torch.arange(3), classes=3)
    for given, name in (
        (three, "0"),
        (DataSet(name="two", x=torch.zeros(2, 1), y=torch.arange(2), classes=2), "yes"),
    ):
        with pytest.raises(FieldError, match=r"data\.positive"):
            with_positive(given, name)


def test_figures_follow_the_positive_class():
    values = {
        "name": "few",
        "rounds": 2,
        "model": {"name": "logistic"},
        "privacy": {"method": "vanilla"},
    }
    usual = deal_out(parse({**values, "data": BREAST}).data, 0)
    names, labels = usual.dataset.names(), usual.dataset.y
    for name in names:
        config = parse({**values, "data": {**BREAST, "positive": name}})
        dealt = deal_out(config.data, 0)
        turned = torch.cat([c.test_y for c in dealt.clients])
        assert torch.equal(dealt.dataset.y, labels if name == names[1] else 1 - labels)
        summary = run(config)
        found, share = summary.values["metrics"], float(turned.float().mean())
        assert summary.values["positive"] == name
        both = share * found["sensitivity"] + (1 - share) * found["specificity"]
        assert both == pytest.approx(found["accuracy"])


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{'ill' if a > 0.5 else 'well'}" for a in rng.random(60)]
    file = tmp_path / "t.csv"
    file.write_text("age,outcome\n" + "\n".join(rows) + "\n")
    return str(file)


def test_init_writes_it_and_says_which_it_took(table):
    text, said = first_config("t", table, 3, "client")
    assert 'positive = "well"' in text
    assert any("well" in line and "--positive ill" in line for line in said)
    text, said = first_config("t", table, 3, "client", positive="ill")
    assert 'positive = "ill"' in text
    assert not any("--positive" in line for line in said)
    assert (
        'positive = "ill"'
        in first_config("t", table, 3, "client", positive=lambda names: names[0])[0]
    )
    with pytest.raises(FieldError, match="positive"):
        first_config("t", table, 3, "client", positive="sick")


def test_auc_is_of_the_positive_class_by_scikit_learn():
    from fedveil.learning.metrics import metrics

    logits, y = (
        torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).round(decimals=0),
        torch.arange(50) % 5 == 0,
    )
    wanted = oracle.roc_auc_score(y, logits.softmax(1)[:, 1])
    assert metrics(logits, y.long())["auc"] == pytest.approx(wanted)
    assert metrics(-logits.flip(1), y.long())["micro_auc"] == pytest.approx(
        metrics(logits, y.long())["micro_auc"]
    )
