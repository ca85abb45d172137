"""Runs that begin with a model of public examples, and what is said of those that end below it."""

import numpy as np
import pytest
import tomli_w
import torch
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegressionCV

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.learning import evaluate
from fedveil_lab.config import load
from fedveil_lab.report.tables import below_public, comparison_notes, comparison_tables
from fedveil_lab.runs import run
from fedveil_lab.runs.prepare import prepare

PUBLIC = ["data.public_examples=400", "model.start=public", "seed=1"]


def test_a_linear_model_begins_as_the_logistic_regression_of_the_public_examples():
    setup = prepare(load("digits-record", PUBLIC))
    public, held = setup.dealt.public, setup.dealt.clients[0]
    head = LogisticRegressionCV(
        Cs=8, cv=5, max_iter=2000, l1_ratios=(0,), scoring="accuracy", use_legacy_attributes=False
    )
    head.fit(public.x.flatten(1).numpy(), public.y.numpy())
    first = setup.starts[0]
    found = evaluate(setup.learner.model, setup.learner.layout, first, held.test_x, held.test_y)[
        "accuracy"
    ]
    assert found == head.score(held.test_x.flatten(1).numpy(), held.test_y.numpy()) > 0.85


def test_two_classes_are_one_row_and_its_negative():
    setup = prepare(load("record-breast", ["data.public_examples=100", "model.start=public"]))
    weight = setup.learner.layout.unflatten(setup.starts[0])
    for values in weight.values():
        assert torch.allclose(values[0], -values[1])
    x = torch.cat([c.x for c in setup.dealt.clients])
    y = torch.cat([c.y for c in setup.dealt.clients])
    found = evaluate(setup.learner.model, setup.learner.layout, setup.starts[0], x, y)["accuracy"]
    assert found > 0.9


@pytest.mark.slow
def test_another_model_is_trained_for_as_long_as_a_fifth_of_the_public_examples_says():
    changes = [*PUBLIC, "model.name=mlp", "privacy.examples=144"]
    setup, again = prepare(load("digits-record", changes)), prepare(load("digits-record", changes))
    first, held = setup.starts[0], setup.dealt.clients[0]
    assert torch.equal(first, again.starts[0])
    assert (
        evaluate(setup.learner.model, setup.learner.layout, first, held.test_x, held.test_y)[
            "accuracy"
        ]
        > 0.8
    )


def test_private_examples_do_not_move_the_first_model():
    setup = prepare(load("digits-record", PUBLIC))
    other = prepare(load("digits-record", [*PUBLIC, "data.clients=3", "data.holdout=0.5"]))
    assert torch.equal(setup.starts, other.starts)


def test_without_public_examples_it_is_refused():
    with pytest.raises(FieldError) as refused:
        prepare(load("digits-record", ["model.start=public"]))
    assert refused.value.field == "model.start"


def test_a_setting_that_ends_below_the_public_model_is_named_and_another_is_not():
    small = [*PUBLIC, "rounds=4"]
    noisy = run(load("digits-record", [*small, "privacy.epsilon=0.005"]), setting="noisy")
    gentle = run(
        load("digits-record", [*small, "privacy.epsilon=1000", "local.lr=1"]), setting="gentle"
    )
    assert below_public([noisy, gentle]) == ["noisy"]
    public = noisy.values["public_model"]["metrics"]["accuracy"]
    assert noisy.values["metrics"]["accuracy"] < public <= gentle.values["metrics"]["accuracy"]
    (table,) = comparison_tables([noisy, gentle], 200)
    assert any(
        row[0] == "public examples alone" and row[1] == f"{public:.3f}" for row in table.rows
    )
    assert any(
        "noisy" in note and "gentle" not in note for note in comparison_notes([noisy, gentle])
    )
    assert np.isfinite(public)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.public_examples=400"], 'model.start = "public"'),
        (PUBLIC, "end below it: in their place take the public model"),
        ([*PUBLIC, "privacy.epsilon=0.0001"], "take the model of the public examples alone"),
        (["seed=1"], ""),
    ],
)
@pytest.mark.parametrize("preset", ["digits-record", "digits-person"])
def test_advice_says_when_to_take_the_public_model(preset, changes, said, tmp_path):
    (tmp_path / "one.toml").write_bytes(tomli_w.dumps(load(preset, changes).to_dict()).encode())
    shown = CliRunner().invoke(app, ["advise", str(tmp_path / "one.toml")])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert said in text
    assert ("public model" in text or "public examples" in text) == bool(said)
    assert ('model.start = "public"' in text) == (said == 'model.start = "public"')


def test_a_person_level_run_below_the_public_model_is_named(tmp_path):
    changes = [*PUBLIC, "rounds=3", "privacy.epsilon=0.005"]
    noisy = run(load("digits-person", changes), setting="noisy")
    assert below_public([noisy]) == ["noisy"]
    assert any("noisy" in note and "take that one" in note for note in comparison_notes([noisy]))
