"""The noisy training that `fedveil init` writes: rates by hand, weights, scaling, several epsilons."""

import tomllib

import pytest
import torch

from fedveil.aggregation import FedAvg
from fedveil.data import DataSet
from fedveil.errors import FieldError
from fedveil.methods import GlobalDP, RecordDP
from fedveil_lab.config import parse
from fedveil_lab.config.first import first_config
from fedveil_lab.config.recipe import (
    InputScaling,
    class_weights,
    client_clip,
    inputs_of,
    plain_rate,
    rate,
)
from fedveil_lab.config.variants import configure, variants_of

pytest.importorskip("pandas")


def settings_of(text: str) -> dict[str, dict]:
    return {one["label"]: one for one in tomllib.loads(text)["compare"]["settings"]}


def test_a_rate_leaves_so_much_noise_in_an_output_by_hand() -> None:
    # a step's mean: 2 * 0.5 / 100 / sqrt(4) = .005; of 16 steps with momentum .9: .005 * 4 * 10 = .2; inputs of
    # length sqrt(1 + 3) = 2: .4 in a logit at rate 1, so that 4 is left at rate 10
    method = RecordDP(examples=100, noise_multiplier=2.0, rounds=16, clip=0.5)
    assert rate(method, 4, InputScaling("centred", 3.0), "cross_entropy") == 10.0
    assert (
        rate(method, 4, InputScaling("centred", 3.0), "mse") == 0.2
    )  # .5, if a step of clip .5 moved .2 at most
    short = RecordDP(examples=100, noise_multiplier=2.0, rounds=16, clip=0.1)
    assert rate(short, 4, InputScaling("centred", 3.0), "mse") == 1.0  # of a fifth of the clip: 2.5
    noisy = RecordDP(examples=100, noise_multiplier=20.0, rounds=16, clip=0.5)
    assert rate(noisy, 4, InputScaling("centred", 3.0), "mse") == 0.05


def test_a_clip_of_updates_leaves_so_much_noise_in_an_output_by_hand() -> None:
    # noise 2 clips, 25 rounds: 5 times that; momentum .9: 10 times; inputs of length 2: 200 clips in a logit
    method = GlobalDP(FedAvg(), noise_multiplier=20.0, rounds=25)
    assert client_clip(method, 10, InputScaling("centred", 3.0), "cross_entropy") == 0.02
    assert client_clip(method, 10, InputScaling("centred", 3.0), "mse") == 0.001


def test_of_many_clients_an_update_moves_an_output_by_no_more_than_declared() -> None:
    # a quarter of 4, over 10 for momentum and 2 for the inputs
    many = [
        client_clip(
            GlobalDP(FedAvg(), noise_multiplier=2.0, rounds=25), n, InputScaling("given", 3.0), "x"
        )
        for n in (10**4, 10**6)
    ]
    assert many == [0.05, 0.05]


def test_the_rate_does_not_hang_on_the_clip() -> None:
    wide, narrow = (
        RecordDP(examples=100, epsilon=4.0, rounds=60, clip=clip) for clip in (1.0, 0.1)
    )
    assert rate(narrow, 10, InputScaling("given", 1.0), "mse") == pytest.approx(
        10 * rate(wide, 10, InputScaling("given", 1.0), "mse"), rel=0.03
    )


def test_inputs_are_as_long_as_declared() -> None:
    def shaped(*shape: int) -> DataSet:
        return DataSet(
            name="t", x=torch.zeros(1, *shape), y=torch.zeros(1, dtype=torch.int64), classes=2
        )

    columns = {"age": [0, 100], "sex": ["f", "m"]}
    assert inputs_of(shaped(3), columns, {}) == InputScaling("centred", 1 / 12 + 2 / 4)
    assert inputs_of(shaped(4), columns, {"age": "indicator"}) == InputScaling(
        "centred", 1 / 12 + 3 / 4
    )
    assert inputs_of(shaped(1, 8, 8), {}, {}) == InputScaling("centred", 64 / 6)


def test_classes_that_are_as_frequent_have_no_weights() -> None:
    def labelled(*counts: int) -> DataSet:
        y = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
        return DataSet(name="t", x=torch.zeros(len(y), 1), y=y, classes=len(counts))

    assert class_weights(labelled(50, 45, 60)) == []
    assert class_weights(labelled(10, 40, 20)) == [1.0, 0.25, 0.5]


def test_a_person_counts_once() -> None:
    # person 0 has classes 0 and 1, half each; persons 1 to 3 class 0 alone: 3.5 to .5
    y, group = torch.tensor([0, 1, 0, 0, 0, 0]), torch.tensor([0, 0, 1, 2, 3, 3])
    dataset = DataSet(name="t", x=torch.zeros(6, 1), y=y, classes=2, group=group)
    assert class_weights(dataset, "person") == [
        0.29,
        1.0,
    ]  # a class that is rarer than one person counts as one


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Ninety rows of three hospitals, a fifth of them ill."""
    monkeypatch.chdir(tmp_path)
    rows = [
        "ward,age,outcome",
        *(f"w{i % 3},{20 + i % 70},{'ill' if i % 5 == 0 else 'well'}" for i in range(90)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    return "t.csv"


def test_three_epsilons_stand_beside_a_baseline_with_a_rate_of_its_own(table) -> None:
    text, said = first_config("t", table, 3, "record")
    settings = settings_of(text)
    assert [one.get("epsilon") for one in settings.values()] == [None, 8.0, 4.0, 1.0]
    rates = [one["local"]["lr"] for one in settings.values()]
    assert rates[1] > rates[2] > rates[3]
    assert rates[1] == tomllib.loads(text)["local"]["lr"]
    assert any("9.53" in line for line in said)
    for variant in variants_of(config := parse(tomllib.loads(text))):
        configure(config, variant.label, variant.setting)


def test_an_epsilon_that_is_asked_for_stands_alone(table) -> None:
    text, said = first_config("t", table, 3, "record", epsilon=2.0)
    assert [one.get("epsilon") for one in settings_of(text).values()] == [None, 2.0]
    assert not any("in total (" in line for line in said)


def test_a_trusted_sum_has_less_noise_and_a_higher_rate(table) -> None:
    alone, _ = first_config("t", table, 3, "record")
    summed, _ = first_config("t", table, 3, "record", sum_="trusted")
    assert tomllib.loads(summed)["privacy"]["silos"] == 3
    assert tomllib.loads(summed)["local"]["lr"] > tomllib.loads(alone)["local"]["lr"]
    with pytest.raises(FieldError) as refused:
        first_config("t", table, 3, "client", sum_="trusted")
    assert refused.value.field == "sum"


def test_whole_clients_have_full_steps_and_a_clip_for_each_epsilon(table) -> None:
    text, said = first_config("t", table, 3, "client")
    values = tomllib.loads(text)
    plain, *noised = settings_of(text).values()
    assert plain == {"label": "no privacy", "method": "vanilla"}
    clips = [one["clip"] for one in noised]
    assert clips[0] > clips[1] > clips[2]
    assert values["privacy"]["clip"] == clips[0]
    assert values["local"]["loss"] == "cross_entropy(weight=[1, 0.25])"
    assert "local.loss" in values["read_off"]
    assert any("9.53" in line for line in said)
    for variant in variants_of(config := parse(values)):
        configure(config, variant.label, variant.setting)


@pytest.mark.parametrize("positive", ["ill", "well"])
def test_weights_follow_the_positive_class_and_are_said_to_be_read_off(table, positive) -> None:
    values = tomllib.loads(first_config("t", table, 3, "record", positive=positive)[0])
    rare = 1.0
    assert values["local"]["class_weights"] == ([0.25, rare] if positive == "ill" else [rare, 0.25])
    assert "local.class_weights" in values["read_off"]


def test_weights_of_other_classes_are_refused(table) -> None:
    from fedveil_lab.runs.runner import run

    values = tomllib.loads(first_config("t", table, 3, "record")[0])
    values["local"]["class_weights"] = [1.0, 0.5, 0.5]
    with pytest.raises(FieldError) as refused:
        run(parse({**values, "rounds": 1}))
    assert refused.value.field == "local.class_weights"


def test_a_step_without_noise_does_not_overshoot() -> None:
    for loss, curvature in (("cross_entropy", 0.5), ("mse", 2.0)):
        inputs = InputScaling("given", 3.0)
        assert 1 < plain_rate(inputs, loss) * curvature * (1 + inputs.square) < 2
