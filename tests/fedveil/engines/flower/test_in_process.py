"""Published metrics, early stopping and liars are the same behind Flower's messages as in the embedded engine."""

from dataclasses import replace

import pytest
import torch

import fedveil as fv
from fedveil.accounting import ParticipationFilter
from fedveil.engines import Behaviour, EarlyStopping
from fedveil.errors import FieldError
from fedveil.flower import FlowerFederation
from fedveil.methods.publishing import Publishing, Validation
from fedveil_lab.config import parse
from fedveil_lab.runs import run
from flower_cases import CLIENTS, arguments, digits

pytestmark = pytest.mark.flower
HELD = digits(CLIENTS + 2)[CLIENTS:]  # of clients that never train


def ledgers(federation):
    found = federation.books()
    if federation.validators is not None:
        found = {**found, **federation.validators.books()}
    return {name: book.entries for name, book in found.items() if book.entries}


def both(name, rounds=3, **changes):
    """The two engines, and what they return."""
    made = [
        engine(**arguments(name, **changes), **more)
        for engine, more in ((fv.Federation, {}), (FlowerFederation, {"shuffle": 3}))
    ]
    return made, [federation.run(rounds) for federation in made]


def sent_configs(federation):
    """Note the config of each train message from now on."""
    seen, ask = [], federation.courier.ask

    def asking(*arguments):
        ask(*arguments)
        seen.append(dict(federation.courier.sent[0].content["config"]))

    federation.courier.ask = asking
    return seen


# ---- published metrics


@pytest.mark.parametrize("metrics", ["noised", "clear"])
def test_published_metrics_are_measured_by_nodes_and_shown_to_them(metrics):
    options = {"clients": digits(test=8), "publishing": Publishing(metrics=metrics)}
    embedded = fv.Federation(**arguments("global-formal", **options))
    flower = FlowerFederation(**arguments("global-formal", **options))
    configs = sent_configs(flower)
    expected, found = embedded.run(3), flower.run(3)
    for ours, theirs in zip(found.rounds, expected.rounds, strict=True):
        assert ours.published == pytest.approx(theirs.published, rel=1e-6)
        assert set(ours.published) == {"loss", "accuracy"}
    assert torch.equal(found.models, expected.models)
    assert found.guarantee == expected.guarantee
    assert configs[0] == {"server-round": 1}
    for config, record in zip(configs[1:], found.rounds, strict=False):
        assert config["published-loss"] == record.published["loss"]


def test_what_nodes_measured_is_published_and_not_what_this_process_could_measure(monkeypatch):
    options = {"clients": digits(test=8), "publishing": Publishing(metrics="clear")}
    flower = FlowerFederation(**arguments("vanilla", **options))
    nodes = flower.courier
    address = nodes.address

    def fewer(broadcast, asked, config, kind):
        """One node answers no question about its metrics."""
        left = dict(list(asked.items())[1:]) if kind == "evaluate" else asked
        return address(broadcast, left, config, kind)

    monkeypatch.setattr(nodes, "address", fewer)
    monkeypatch.setattr(flower, "evaluate", lambda: ([{"examples": 8}] * CLIENTS, None))
    shown = flower.run(1).rounds[0].published
    assert 0 < shown["loss"] < 5


# ---- early stopping


NOISED = Validation(noise_multiplier=0.5, loss_range=2.0, releases=3)
RULES = {
    "public": EarlyStopping(patience=2, min_delta=0.5, validation=Validation(losses="public")),
    "noised": EarlyStopping(patience=9, every=2, validation=NOISED),
    "sampled": EarlyStopping(patience=9, sample=1, validation=NOISED),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["global-formal", "sga-ldp", "ifca"])
def test_validating_nodes_stop_a_run_where_validation_clients_do(name, rule):
    options = {"validation_clients": HELD, "stopping": RULES[rule]}
    federations, (expected, found) = both(name, 5, **options)
    assert [r.validation for r in found.rounds] == [r.validation for r in expected.rounds]
    assert found.stopped == expected.stopped
    assert found.best.round == expected.best.round
    assert torch.equal(found.best.models, expected.best.models)
    assert torch.equal(found.models, expected.models)
    assert found.guarantees == expected.guarantees
    assert ledgers(federations[1]) == ledgers(federations[0])
    if rule == "public":
        assert found.stopped


def test_a_validating_node_never_trains_and_its_budget_ends():
    options = {"validation_clients": HELD, "stopping": RULES["noised"]}
    budget = {"client_budgets": lambda p: ParticipationFilter(1) if p >= CLIENTS else None}
    federations, (expected, found) = both("sga-ldp", 4, **options, **budget)
    assert [r.validation for r in found.rounds] == [r.validation for r in expected.rounds]
    assert sum(r.validation is not None for r in found.rounds) == 1
    assert all(set(r.round.used) <= set(range(CLIENTS)) for r in found.rounds)
    assert ledgers(federations[1]) == ledgers(federations[0])


# ---- liars


class Doubling(Behaviour):
    """Trains on shifted labels, and sends twice its update."""

    def data(self, data, partition, round_):
        return replace(data, y=(data.y + round_) % 10)

    def model(self, turn):
        return turn.start + 2 * turn.update * len(turn.fellows)


class Knowing(Behaviour):
    """Sends the reverse of what the honest ones sent, and a trace of what they trained."""

    omniscient = True

    def model(self, turn):
        return turn.start - turn.released.mean(0) + 0.01 * turn.honest.sum(0)


LIARS = {
    "fellows": {1: Doubling(), 3: Doubling()},
    "around": {2: Doubling(bypass=True)},
    "knowing": {0: Knowing()},
    "knowing and around": {0: Knowing(bypass=True), 2: Doubling()},
}


@pytest.mark.few(4)
@pytest.mark.parametrize("liars", LIARS)
@pytest.mark.parametrize("name", ["global-formal", "sga-ldp", "group"])
def test_liars_do_the_same_behind_flowers_messages(name, liars):
    federations, (expected, found) = both(name, behaviours=LIARS[liars])
    assert torch.equal(found.models, expected.models)
    assert [r.round for r in found.rounds] == [r.round for r in expected.rounds]
    assert [r.client_scales for r in found.rounds] == [r.client_scales for r in expected.rounds]
    assert ledgers(federations[1]) == ledgers(federations[0])
    assert not torch.equal(found.models, fv.Federation(**arguments(name)).run(3).models)


def test_who_goes_around_its_method_and_fails_is_a_failed_client():
    class Broken(Behaviour):
        def model(self, turn):
            raise ValueError("4711")

    _, (expected, found) = both("sga-ldp", 1, behaviours={1: Broken(bypass=True)})
    assert set(found.rounds[0].round.failed) == set(expected.rounds[0].round.failed) == {1}


def test_a_secure_sum_is_not_gone_around():
    from test_flower_secure import arguments as of_sums

    with pytest.raises(FieldError, match="secure sum"):
        FlowerFederation(**of_sums(3), behaviours={0: Doubling(bypass=True)})


# ---- a configuration


TINY = {
    "name": "tiny",
    "rounds": 2,
    "data": {"name": "breast-cancer", "clients": 6, "holdout": 0.2},
    "model": {"name": "logistic"},
    "privacy": {"method": "global", "noise_multiplier": 1.0, "clip": 1.0},
    "publish": {"metrics": "noised"},
    "stopping": {"clients": 0.34, "losses": "public"},
    "malicious": {"behaviour": "alie", "clients": [0]},
}


def test_a_configuration_runs_alike_on_both_engines(tmp_path):
    rows = {}
    for engine in ("local", "flower"):
        run(parse({**TINY, "engine": engine}), tmp_path / engine)
        lines = (tmp_path / engine / "metrics.csv").read_text().splitlines()
        assert lines[0].endswith(",seconds")
        rows[engine] = [line.rpartition(",")[0] for line in lines]
    assert len(rows["local"]) == 3
    assert rows["flower"] == rows["local"]
