"""Forecast and run of random configurations with budgets: the same rounds, promise and refusal."""

import random

import pytest

from fedveil.errors import FedVeilError
from fedveil_lab.config.loading import assign, parse
from fedveil_lab.runs.promised import prepared, promised
from fedveil_lab.runs.runner import run

DATA = {"name": "digits", "clients": 4, "partition": "iid", "holdout": 0.2}
BASE = {
    "name": "tiny",
    "data": DATA,
    "model": {"name": "logistic"},
    "local": {"batch_size": 400, "lr": 0.1},
}
RECORD = ["privacy.method=record", "privacy.examples=200", "privacy.noise_multiplier=3.0"]
PERSON = [
    "privacy.method=record",
    "privacy.unit=person",
    "privacy.people=60",
    "privacy.records_per_person=4",
]
SGA = ["privacy.method=sga-ldp", "privacy.epsilon_min=2", "privacy.epsilon_max=6"]
METHODS = {
    "vanilla": [],
    "global": ["privacy.method=global", "privacy.noise_multiplier=2.0"],
    "released": [
        "privacy.method=metric",
        "privacy.noise_multiplier=2.0",
        "privacy.distance_on=released",
    ],
    "ifca": ["privacy.method=ifca", "privacy.hypotheses=2"],
    "group": ["privacy.method=group", "privacy.radius=0.5"],
    "sga-ldp": SGA,
    "sga-ldp, static": [*SGA, "privacy.epsilon_max=2"],
    "sga-ldp, released": [*SGA, "privacy.similarity=released"],
    "record": RECORD,
    "trusted sum": [*RECORD, "privacy.sum=trusted"],
    "secure sum": [*RECORD, "privacy.sum=secure"],
    "person": [*PERSON, "privacy.noise_multiplier=3.0", "data.made_up_people=5"],
}
STOP = ["data.clients=6", "stopping.clients=0.4", "stopping.patience=99"]
STOPS = [
    STOP,
    [*STOP, "stopping.sample=1"],
    [*STOP, "stopping.losses=public"],
    [*STOP, "stopping.releases=2"],
]
SHARE = "share = 0.25"
MORE = [f'malicious={{behaviour = "{kind}", {SHARE}}}' for kind in ("free-rider", "sign-flip")]
MORE += [
    "aggregator.name=fedmedian",
    "aggregator.name=fedadam",
    "privacy.rounds=2",
    "privacy.rounds=9",
]


def drawn(seed):
    """The assignments of a configuration."""
    rng = random.Random(seed)
    chosen = list(METHODS[rng.choice(list(METHODS))])
    chosen += [f"rounds={rng.randint(2, 8)}", f"seed={rng.randint(0, 50)}"]
    if rng.random() < 0.6:
        chosen.append(f"clients_per_round={rng.randint(1, 4)}")
    kind = rng.random()
    if kind < 0.45:
        chosen.append(f"privacy.budget.participations={rng.randint(1, 5)}")
    elif kind < 0.6:
        chosen.append(f"privacy.budget.leakage_cap={rng.choice([1, 5, 30, 140])}")
    else:
        chosen.append(f"privacy.budget.epsilon={rng.choice([0.3, 1, 2, 3, 4, 5, 8, 20, 60])}")
    if rng.random() < 0.3:
        chosen += rng.choice(STOPS)
    if rng.random() < 0.2:
        chosen.append(rng.choice(["publish.metrics=noised", "publish.metrics=clear"]))
    if rng.random() < 0.2:
        chosen.append(rng.choice(MORE))
    return chosen


def played(config, how):
    try:
        return how(config), ""
    except (FedVeilError, ValueError) as error:
        return None, str(error)


def agree(seed):
    """Whether a configuration could be read at all; what forecast and run say of it is the same."""
    chosen, values = drawn(seed), {**BASE, "data": dict(DATA)}
    values |= {name: dict(BASE[name]) for name in ("model", "local")}
    try:
        for one in chosen:
            assign(values, one)
        config = parse(values)
    except (FedVeilError, ValueError):
        return False
    forecast, refused = played(config, lambda c: promised(prepared(c)))
    found, failed = played(config, lambda c: run(c).values)
    assert bool(refused) == bool(failed), (seed, chosen, refused, failed)
    if forecast is None or found is None:
        return False
    if forecast.at_most:
        assert found["rounds"] <= forecast.rounds, (seed, chosen)
        return True
    assert found["rounds"] == forecast.rounds, (seed, chosen, found["stopped"])
    counts = found["guarantees"].get("server") or found["guarantees"]["worst client"]
    if not counts.get("hypotheses_apart"):
        assert counts["text"] == forecast.guarantee.describe(config.privacy.budget.delta), (
            seed,
            chosen,
        )
    return True


@pytest.mark.filterwarnings("ignore")
def test_forecast_and_run_end_at_the_same_round_in_some_random_configurations():
    assert sum(agree(seed) for seed in range(12)) >= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_forecast_and_run_end_at_the_same_round_in_many_random_configurations():
    assert sum(agree(seed) for seed in range(12, 612)) >= 150
