"""What studies say in a configuration: validation clients, where hypotheses begin, sensitive kinds, metrics by name."""

import tomllib

import pytest
import torch

from fedveil.errors import FieldError
from fedveil_lab.config import ConfigError
from fedveil_lab.config import parse as checked
from fedveil_lab.runs import run
from fedveil_lab.runs.prepare import prepare

BASE = """
name = "s"
rounds = 40
[data]
name = "digits"
clients = 8
[model]
name = "logistic"
[local]
lr = 20.0
[privacy]
method = "group"
noise_multiplier = 3.0
hypotheses = 2
"""
STOPPING = """
[stopping]
clients = 0.25
patience = 2
sample = 2
losses = "public"
"""


def parse(text, **changes):
    return checked(tomllib.loads(text) | changes)


def test_validation_clients_never_train_and_end_the_run(tmp_path):
    config = parse(BASE + STOPPING)
    setup = prepare(config)
    training, validating = setup.clients, setup.evaluation.stopping.clients
    assert (len(training), len(validating)) == (6, 2)
    assert not {c.name for c in training} & {c.name for c in validating}
    summary = run(config, tmp_path / "a")
    assert summary.values["rounds"] < 40
    assert "stopped early" in summary.stopped
    losses = [row["validation"] for row in summary.rows]
    assert summary.values["best"] == {
        "validation": min(losses),
        "round": losses.index(min(losses)) + 1,
    }
    assert len(losses) == losses.index(min(losses)) + 3
    assert summary.values["participations"] == {str(len(losses)): 6}
    assert summary.values["guarantees"]["validation clients"]["status"] == "none"
    assert parse((tmp_path / "a" / "config.toml").read_text()).fingerprint() == config.fingerprint()
    assert config.fingerprint() != parse(BASE).fingerprint()


def test_budgets_of_a_configuration_hold_validation_clients_too():
    private = BASE.replace('"group"', '"sga-ldp"').replace(
        "hypotheses = 2", "epsilon_min = 1.0\nepsilon_max = 1.0"
    )
    private = private.replace("noise_multiplier = 3.0\n", "").replace("rounds = 40", "rounds = 3")
    noised = STOPPING.replace('"public"', '"noised"').replace(
        "patience = 2", "patience = 9\nnoise_multiplier = 1.0"
    )
    # three rounds of training cost mu .93, epsilon 4.0; a loss costs mu 1: two of them epsilon 6.6, three 8.4
    for budget, trained, validated in (
        ("participations = 2", 2, 2),
        ("epsilon = 7.0", 3, 2),
        ("epsilon = 9.0", 3, 3),
    ):
        rows = run(parse(f"{private}{noised}[privacy.budget]\n{budget}")).rows
        assert [row.get("validation") is not None for row in rows] == [
            i < validated for i in range(trained)
        ]
    with pytest.raises(FieldError, match="none release"):
        run(parse(f"{private}{STOPPING}[privacy.budget]\nepsilon = 8.0"))


def test_hypotheses_begin_where_the_configuration_says():
    own = prepare(parse(BASE)).starts
    normal = prepare(parse(BASE.replace('"logistic"', '"logistic"\nstart = "normal"'))).starts
    assert normal.shape == own.shape
    assert abs(float(normal.std()) - 1) < 0.05
    assert abs(float(normal.mean())) < 0.1
    assert float((normal[0] * normal[1]).mean()) < 0.1
    other = prepare(
        parse(BASE.replace('"logistic"', '"logistic"\nstart = "normal"'), seed=1)
    ).starts
    assert not torch.equal(normal, other)


def test_metrics_by_name():
    summary = run(
        parse(BASE.replace("rounds = 40", 'rounds = 1\nmetrics = ["balanced_accuracy", "loss"]'))
    )
    assert set(summary.rows[0]["metrics"]) >= {"balanced_accuracy", "loss"}
    assert "accuracy" not in summary.rows[0]["metrics"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STOPPING.replace("0.25", "1.5"), r"stopping\.clients"),
        (STOPPING.replace("patience = 2", "patience = 0"), r"stopping\.patience"),
        (STOPPING.replace("patience", "patients"), r"patience"),
        ("[scoring]\nimages = 0\n", r"scoring\.images"),
        ('[scoring]\ndraw = "often"\n', r"scoring\.draw"),
    ],
)
def test_refusals(text, message):
    with pytest.raises((ConfigError, FieldError), match=message):
        parse(BASE + text)


def test_a_set_that_knows_no_sensitive_pixels():
    with pytest.raises(FieldError, match="does not say"):
        prepare(parse(BASE.replace('name = "digits"', 'name = "digits"\nsensitive = [["total"]]')))
