"""What `advise` and `plan` say of a configuration is what its run then promises, for every option that costs."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedveil.accounting import Entry, Ledger, advise
from fedveil.cli import app
from fedveil.evidence import advice_tables
from fedveil.methods import METHODS, Broadcast, PublicFacts, Publishing, build, parameters
from fedveil_lab.config import Config
from fedveil_lab.config.course import Stopping
from fedveil_lab.config.loading import assign, parse
from fedveil_lab.config.sections import Budget
from fedveil_lab.runs.promised import guarantees_of
from fedveil_lab.runs.runner import run

BASE = {
    "name": "tiny",
    "rounds": 3,
    "data": {"name": "digits", "clients": 4, "partition": "quantity", "alpha": 2.0, "holdout": 0.2},
    "model": {"name": "logistic"},
    "local": {"batch_size": 400, "lr": 0.1},
}
GLOBAL = ["privacy.method=global", "privacy.noise_multiplier=2.0"]
RELEASED = ["privacy.method=metric", "privacy.noise_multiplier=2.0", "privacy.distance_on=released"]
RECORD = [
    "privacy.method=record",
    "privacy.examples=200",
    "privacy.noise_multiplier=3.0",
    "data.partition=iid",
]
RECORD += ["data.alpha=[]"]
POISSON = [
    "privacy.rate=0.25",
    "privacy.noise_multiplier=300.0",
]  # so small a loss has a small grid
SUM = [*RECORD, "privacy.sum=trusted"]
PERSON = [
    "privacy.method=record",
    "privacy.unit=person",
    "privacy.people=60",
    "privacy.records_per_person=4",
]
PERSON += [
    "privacy.noise_multiplier=3.0",
    "data.partition=iid",
    "data.alpha=[]",
    "data.made_up_people=5",
]
GROUP = ["privacy.method=group", "privacy.radius=0.5"]
FEDRE = [
    "privacy.method=fedre",
    "privacy.epsilon=8",
    "data.region=[3,3,5,5]",
    "data.public_examples=16",
]
FEDRE += ["model.name=small_cnn", "model.channels=[2]", "model.dense=4", "scoring.images=2"]
SOUND = [*FEDRE, "privacy.scores=public"]
SGA = ["privacy.method=sga-ldp", "privacy.epsilon_min=2", "privacy.epsilon_max=6"]
STOP = ["data.clients=6", "stopping.clients=0.4", "stopping.patience=99"]
HALF = ["clients_per_round=2", "rounds=5"]


def own(**values):
    """One client with parameters of its own."""
    return f"privacy.clients=[{{partitions = [1], {', '.join(f'{k} = {v}' for k, v in values.items())}}}]"


# What is set, by name; every parameter of every method and every key of the tables that cost stands in one of them.
CASES = {
    "no privacy": [],
    "no privacy, an optimiser": ["aggregator.name=fedadam"],
    "no privacy, no metrics held out": ["data.holdout=0"],
    "global": GLOBAL,
    "global, to a total": [
        "privacy.method=global",
        "privacy.epsilon=3.0",
        "privacy.delta=1e-6",
        "privacy.rounds=3",
    ],
    "global, to a total of other rounds": [
        "privacy.method=global",
        "privacy.epsilon=3.0",
        "privacy.rounds=2",
    ],
    "global, derived": [*GLOBAL, "privacy.derived_from=elsewhere"],
    "global, printed": [*GLOBAL, "privacy.order=printed"],
    "global, printed, its own step": [*GLOBAL, "privacy.order=printed", "privacy.step_from=own"],
    "global, printed, an optimiser": [*GLOBAL, "privacy.order=printed", "aggregator.name=fedadam"],
    "global, printed, by examples": [
        *GLOBAL,
        "privacy.order=printed",
        "aggregator.weighting=examples",
    ],
    "global, printed, by examples, cohorts": [
        *(*GLOBAL, "privacy.order=printed", "aggregator.weighting=examples", *HALF),
    ],
    "global, by examples": [
        *GLOBAL,
        "aggregator.weighting=examples",
        "aggregator.max_examples=900",
    ],
    "global, an optimiser": [*GLOBAL, "aggregator.name=fedadam"],
    "global, cohorts": [*GLOBAL, *HALF],
    "global, natural clients": [
        *(
            *GLOBAL,
            "data.name=npz",
            "data.path={npz}",
            "data.client_array=site",
            "data.clients=natural",
        ),
        *("data.partition=natural", "data.alpha=[]", "data.classes=2"),
    ],
    "global, medians": [*GLOBAL, "privacy.order=printed", "aggregator.name=fedmedian"],
    "global, trimmed": [*GLOBAL, "aggregator.name=trimmed-mean", "aggregator.fraction=0.25"],
    "global, replace-one": [*GLOBAL, "privacy.relation=replace-one"],
    "global, add/remove": [*GLOBAL, "privacy.relation=add/remove"],
    "global, discrete": [*GLOBAL, "privacy.noise=discrete"],
    "global, adaptive clip": [*GLOBAL, "privacy.clip={initial = 1.0, bit_noise = 0.7}"],
    "global, a budget": [*GLOBAL, "rounds=6", "privacy.budget.epsilon=4.0"],
    "global, a budget at another delta": [
        *GLOBAL,
        "privacy.budget.epsilon=4.0",
        "privacy.budget.delta=1e-7",
    ],
    "global, a budget, noised metrics": [
        *(
            *GLOBAL,
            "rounds=6",
            "privacy.budget.epsilon=4.0",
            "publish.metrics=noised",
            "publish.noise_multiplier=3.0",
        ),
    ],
    "global, participations": [*GLOBAL, "privacy.budget.participations=9"],
    "global, clear metrics": [*GLOBAL, "publish.metrics=clear"],
    "global, noised metrics": [*GLOBAL, "publish.metrics=noised", "publish.noise_multiplier=0.5"],
    "global, noised metrics of other ranges": [
        *GLOBAL,
        "publish.metrics=noised",
        "publish.loss_range=9.0",
    ],
    "global, noised metrics, add/remove": [
        *GLOBAL,
        "publish.metrics=noised",
        "privacy.relation=add/remove",
    ],
    "global, stopping": [*GLOBAL, *STOP, "stopping.noise_multiplier=0.5"],
    "global, stopping by a sample": [*GLOBAL, *STOP, "stopping.every=2", "stopping.sample=1"],
    "global, stopping by losses of another range": [*GLOBAL, *STOP, "stopping.loss_range=5.0"],
    "global, stopping in the clear": [
        *GLOBAL,
        *STOP,
        "stopping.losses=public",
        "stopping.min_delta=0.01",
    ],
    "metric": ["privacy.method=metric", "privacy.distance=euclidean", "privacy.grouping=module"],
    "metric, released": RELEASED,
    "metric, released, more": [*RELEASED, "privacy.direction=more"],
    "metric, released, its range": [
        *RELEASED,
        "privacy.released_range=[0.5, 2.0]",
        "privacy.clip=1.0",
    ],
    "metric, released, a budget": [*RELEASED, "rounds=6", "privacy.budget.epsilon=60.0"],
    "metric, released, replace-one": [*RELEASED, "privacy.relation=replace-one"],
    "metric, released, printed": [*RELEASED, "privacy.order=printed", "privacy.step_from=own"],
    "metric, released, discrete": [*RELEASED, "privacy.noise=discrete"],
    "metric, clear metrics": ["privacy.method=metric", "publish.metrics=clear"],
    "group": [
        "privacy.method=group",
        "privacy.fallback_radius=2.0",
        "privacy.hypotheses=2",
        "privacy.divide=1",
    ],
    "group, one hypothesis": [*GROUP, "privacy.hypotheses=1"],
    "group, public radius": [*GROUP, "privacy.hypotheses=2", "privacy.noise_multiplier=2.0"],
    "group, Gaussian": [*GROUP, "privacy.hypotheses=2", "privacy.distribution=gaussian"],
    "group, leakage": [*GROUP, "privacy.noise_multiplier=10.0", "privacy.budget.leakage_cap=140.0"],
    "group, participations": [*GROUP, "privacy.budget.participations=2"],
    "group, a client's own radius": [*GROUP, own(radius=0.05)],
    "group, stopping": [*GROUP, *STOP],
    "ifca": ["privacy.method=ifca", "privacy.hypotheses=3", "privacy.divide=2"],
    "fedre": FEDRE,
    "fedre, plain means": [*FEDRE, "privacy.weighting=equal", "privacy.normalised=false"],
    "fedre, even": [*FEDRE, "privacy.split=uniform", "privacy.clip=0.1"],
    "fedre, a sample's part": [*FEDRE, "privacy.sensitivity=sample"],
    "fedre, scaled": [*SOUND, "privacy.noise_to_clip=2.0"],
    "fedre, public": SOUND,
    "fedre, public, by size": [*SOUND, "privacy.split=size", "privacy.delta=1e-6"],
    "fedre, public, cohorts": [*SOUND, *HALF],
    "fedre, public, a client's own epsilon": [*SOUND, own(epsilon=42.0)],
    "fedre, public, a budget": [*SOUND, "privacy.budget.epsilon=5.0"],
    "record": RECORD,
    "record, to a total": [
        *(
            "privacy.method=record",
            "privacy.examples=200",
            "privacy.epsilon=2.0",
            "privacy.delta=1e-6",
        ),
        *("data.partition=iid", "data.alpha=[]", "privacy.rounds=4"),
    ],
    "record, steps": [*RECORD, "privacy.steps=3", "privacy.clip=0.5"],
    "record, Poisson": [*RECORD, *POISSON, "privacy.steps=2"],
    "record, Poisson, replace-one": [*RECORD, *POISSON, "privacy.relation=replace-one"],
    "record, add/remove": [*RECORD, "privacy.relation=add/remove", "privacy.most=500"],
    "record, fewer rounds planned": [*RECORD, "privacy.rounds=2"],
    "record, cohorts": [*RECORD, *HALF],
    "record, a budget": [*RECORD, "rounds=6", "privacy.budget.epsilon=2.0"],
    "record, a rule that reads all": [*RECORD, "aggregator.name=fedmedian"],
    "record, stopping": [*RECORD, *STOP, "stopping.noise_multiplier=2.0", "stopping.releases=2"],
    "record, stopping in the clear": [*RECORD, *STOP, "stopping.losses=public"],
    "record, persons": PERSON,
    "record, persons in two silos": [*PERSON, *POISSON, "privacy.silos_per_person=2"],
    "record-sum": SUM,
    "record-sum, two tolerated": [*SUM, "privacy.tolerated=2", "privacy.silos=4"],
    "record-sum, Poisson": [*SUM, *POISSON, "privacy.clip=0.5"],
    "record-sum, add/remove": [*SUM, "privacy.relation=add/remove", "privacy.most=500"],
    "record-sum, replace-one": [*SUM, "privacy.relation=replace-one"],
    "record-sum, a step": [*SUM, "privacy.steps=1", "privacy.rounds=3", "aggregator.name=fedavgm"],
    "record-sum, persons in two silos": [
        *PERSON,
        "privacy.sum=trusted",
        "privacy.silos_per_person=2",
    ],
    "record-sum, to a total": [
        *(
            "privacy.method=record",
            "privacy.sum=trusted",
            "privacy.examples=200",
            "privacy.epsilon=2.0",
            "privacy.delta=1e-6",
        ),
        *("data.partition=iid", "data.alpha=[]"),
    ],
    "record-secure": [*RECORD, "privacy.sum=secure", "privacy.least_sites=4", "privacy.units=900"],
    "record-secure, persons in two silos": [
        *(
            *PERSON,
            "privacy.sum=secure",
            "privacy.silos_per_person=2",
            "privacy.steps=1",
            "privacy.clip=0.5",
        ),
    ],
    "record-secure, to a total": [
        *(
            "privacy.method=record",
            "privacy.sum=secure",
            "privacy.examples=200",
            "privacy.epsilon=2.0",
            "privacy.delta=1e-6",
        ),
        *("data.partition=iid", "data.alpha=[]", "privacy.rounds=3"),
    ],
    "record-secure, retries, colluders": [
        *(*RECORD, *POISSON, "privacy.sum=secure", "privacy.retries=2", "privacy.colluding=2"),
        *("privacy.relation=add/remove", "privacy.most=500", "privacy.lr=0.1"),
    ],
    "sga-ldp": [*SGA, "privacy.memory=0.5", "aggregator.name=fedavgm"],
    "sga-ldp, static": [*SGA, "privacy.epsilon_max=2", "privacy.clip=0.5", "privacy.delta=1e-6"],
    "sga-ldp, released": [*SGA, "privacy.similarity=released"],
    "sga-ldp, released, a budget": [
        *SGA,
        "privacy.similarity=released",
        "rounds=6",
        "privacy.budget.epsilon=40.0",
    ],
    "sga-ldp, noised": [*SGA, "privacy.similarity=noised", "privacy.similarity_noise=2.0"],
    "sga-ldp, released, a client's own epsilon": [
        *SGA,
        "privacy.similarity=released",
        own(epsilon_max=30.0),
    ],
    "sga-ldp, released, malicious": [
        *SGA,
        "privacy.similarity=released",
        'malicious={behaviour = "free-rider", share = 0.25}',
    ],
    "sga-central": [
        "privacy.method=sga-central",
        "privacy.clusters=2",
        "privacy.thresholds=round",
        "privacy.clip=2.0",
    ],
    "sga-central, its range": [
        *(
            "privacy.method=sga-central",
            "privacy.epsilon_min=0.5",
            "privacy.epsilon_max=9",
            "privacy.delta=1e-6",
        ),
    ],
}
KEPT = (
    "unit",
    "relation",
    "trust",
    "status",
    "scope",
    "mu",
    "mu_per_distance",
    "rho",
    "epsilon_per_distance",
)
KEPT += ("events", "events_per_distance", "public_size", "conditions", "epsilon", "delta", "reason")

# Options that stand in no case, and why they need none.
SAME_FOR_ALL = {
    "blank": "of regions, whose marks no table of a configuration gives; it stands in no promise",
    "aggregator": "a table of its own",
    "loop": "who takes the steps: the app's own loop is of a Flower app alone",
}


def configured(assignments, npz="") -> Config:
    values = json.loads(json.dumps(BASE))
    for assignment in assignments:
        assign(values, assignment.replace("{npz}", str(npz)))
    return parse(values)


def kept(values):
    return {
        k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v
        for k, v in values.items()
        if k in KEPT
    }


RAN = {}


def summary_of(name, config):
    """What a case's run comes to; each is run once."""
    if name not in RAN:
        RAN[name] = run(config).values
    return RAN[name]


def called(*arguments):
    return CliRunner().invoke(app, ["--json", *map(str, arguments)])


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a case's configuration, and the file that its natural clients are in; leave curves to their own tests."""
    monkeypatch.setattr("fedveil_lab.runs.promised.find_spec", lambda name: None)
    rows = np.random.default_rng(0)
    site, npz, file = (
        np.repeat(np.arange(3), [20, 30, 40]),
        tmp_path / "own.npz",
        tmp_path / "tiny.toml",
    )
    np.savez(npz, x=rows.normal(size=(90, 5)).astype("float32"), y=np.arange(90) % 2, site=site)

    def write(assignments):
        config = configured(assignments, npz)
        file.write_text(config.to_toml())
        return config, file

    return write


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_what_is_advised_is_what_the_run_promises(name, written):
    config, file = written(CASES[name])
    result = called("advise", file)
    assert result.exit_code == 0, result.output
    advised = json.loads(result.stdout.splitlines()[0])
    ran = summary_of(name, config)
    counts = ran["guarantees"].get("server") or ran["guarantees"]["worst client"]
    assert kept(advised["guarantee"]) == kept(counts)
    assert kept(advised["validation"] or {}) == kept(
        ran["guarantees"].get("validation clients", {})
    )
    assert (
        advised["rounds"] == ran["rounds"] or "released, a budget" in name
    )  # which is charged what releases tell
    if counts.get("hypotheses_apart"):
        assert "hypotheses_apart" not in advised["guarantee"]  # training decides it
        assert bool(advised["unknown"]) == (counts["status"] == "conditional")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name, given in CASES.items() if "privacy.method=global" in given]
)
def test_a_plan_is_the_runs_promise_or_refused(name, written):
    config, file = written(CASES[name])
    result, ran = called("plan", file), summary_of(name, config)["guarantees"]
    planned = json.loads(result.stdout) if result.exit_code == 0 else {}
    if planned:
        [found] = ran.values()
        same = ("unit", "relation", "trust", "mu", "epsilon", "delta")
        assert kept({key: planned[key] for key in same}) == kept({key: found[key] for key in same})
        assert planned["conditions"] == found.get("conditions", [])
    else:
        assert result.exit_code == 2
        assert "advise" in result.stderr
    assert bool(planned) == (name in PLANNED)


PLANNED = {
    "global",
    "global, to a total",
    "global, to a total of other rounds",
    "global, printed",
    "global, printed, its own step",
    "global, by examples",
    "global, an optimiser",
    "global, cohorts",
    "global, natural clients",
    "global, replace-one",
    "global, add/remove",
    "global, participations",
}


def test_every_option_that_could_cost_stands_in_a_case():
    """An option that is added later is asked for here."""
    given = {}
    for case in CASES.values():
        values = dict(one.split("=", 1) for one in case)
        method = values.get("privacy.method", "vanilla")
        given.setdefault(method, set()).update(key.removeprefix("privacy.") for key in values)
    for method in METHODS:
        missing = set(parameters(method)) - given[method] - SAME_FOR_ALL.keys()
        assert not missing, method
    everywhere = set().union(*given.values())
    tables = {
        "publish": {field.name for field in fields(Publishing)},
        "stopping": set(Stopping.model_fields),
        "budget": set(Budget.model_fields),
    }
    for table, keys in tables.items():
        assert not {f"{table}.{key}" for key in keys} - everywhere
    assert {
        "clients",
        "clients_per_round",
        "rounds",
        "aggregator.weighting",
        "data.clients",
    } <= everywhere


@pytest.mark.parametrize("far", ["0", "1"])
def test_what_holds_for_every_client_is_at_the_largest_distance_of_any(far):
    """By hand: costs of 5.8 and 5.9 for the choice, and the same per distance."""
    method, books = build("group", radius=1.0, hypotheses=2), {}
    for party in ("0", "1"):
        apart = 0.59 if party == far else 0.58
        broadcast = Broadcast(
            models=torch.tensor([[0.0] * 10, [apart] + [0.0] * 9]),
            public=PublicFacts(round=1, rounds=1, cohort=2, dimension=10),
        )
        books[party] = Ledger("a run", party)
        books[party].commit(
            Entry((1, "protect"), 0, "", method.client.quote(broadcast, method.client.init()))
        )
    worst, parties = guarantees_of(method, books, 1e-5)
    assert worst.hypotheses_apart == pytest.approx(0.59)
    assert parties["worst client"]["hypotheses_apart"] == pytest.approx(0.59)


def test_advice_fits_a_page_of_80_columns():
    found = advise(clients=4, examples=100, dimension=650, rounds=7, epsilon=4.0)
    words = " ".join(table.text(80) for table in advice_tables(found, 1e-5)).split()
    for choice in found:
        assert all(
            word in words
            for word in (choice.guarantee.describe(1e-5) if choice.guarantee else "").split()
        )
        assert all(word in words for line in choice.lines for word in line.split())
