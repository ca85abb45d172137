"""What leaves a client, or the server, differs from the raw value by noise of the claimed scale: no less, no more."""

import math

import pytest
import torch

from fedveil.clipping import clip
from fedveil.engines import ClientParty
from fedveil.flower import FlowerFederation, from_arrays
from fedveil.mechanisms import EuclideanLaplaceNoise, GaussianNoise, gaussian_sigma
from flower_cases import CLIENTS, METHODS, arguments, observe

pytestmark = pytest.mark.flower
LOCAL = [name for name, m in METHODS.items() if m.client.trust == "local"]
NOISED = [name for name in METHODS if name.startswith(("global", "metric"))]


def check_gaussian(noise, deviation, factor=1.0):
    """The deviation of `noise` is the claimed one, within five standard errors."""
    ratio = float(noise.double().square().mean().sqrt()) * factor / deviation
    assert abs(ratio - 1) < 5 / math.sqrt(2 * len(noise)), ratio


def check_laplace(noise, expected_length, factor=1.0):
    """The length of one n-dimensional Laplace draw is n / epsilon, with relative deviation 1 / sqrt(n)."""
    ratio = float(noise.double().norm()) * factor / expected_length
    assert abs(ratio - 1) < 5 / math.sqrt(len(noise)), ratio


def check_client(method, layout, start, learned, sent, factor=1.0):
    """One client's reply against its raw model, from the paper's formulas."""
    side, raw = method.client, learned.trained.model
    if method.name == "group":
        check_laplace(sent - raw, side.noise_multiplier * float((raw - start).norm()), factor)
    elif method.name == "sga-ldp":  # first round: no reference yet, so epsilon_min
        deviation = gaussian_sigma(side.epsilon_min, side.delta, side.clip)
        check_gaussian(sent - start - clip(raw - start, side.clip), deviation, factor)
    else:
        groups, scores = layout.groups("module"), learned.layer_scores
        inverse = {name: 1 / s for name, s in scores.items()}
        clipped = clip(raw - start, dict.fromkeys(groups, side.clip), layout)
        for name, slices in groups.items():
            epsilon = side.epsilon * inverse[name] / sum(inverse.values())
            deviation = side.clip * math.sqrt(2 * 1 * math.log(len(groups) / side.delta)) / epsilon
            noise = torch.cat([(sent - start - clipped)[s] for s in slices])
            check_gaussian(noise, deviation, factor)


def one_round(name):
    federation = FlowerFederation(**arguments(name))
    raw, sent = observe(federation)
    federation.run(1)
    found = {}
    for reply in sent:
        if "arrays" in reply.content:
            partition = reply.content["fedveil.reply"]["partition-id"]
            found[partition] = (
                *raw[1, partition],
                from_arrays(federation.layout, reply.content["arrays"]),
                reply,
            )
    assert len(found) == CLIENTS
    return federation, found


def check_local(name, factor=1.0):
    federation, found = one_round(name)
    for start, learned, sent, _ in found.values():
        check_client(METHODS[name], federation.layout, start, learned, sent, factor)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", LOCAL)
def test_each_client_sends_noise_of_the_claimed_scale(name):
    check_local(name)
    for wrong in (0.5, 2.0):
        with pytest.raises(AssertionError):
            check_local(name, wrong)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_planted_noise_of_the_wrong_scale_is_caught(name, factor, monkeypatch):
    for mechanism in (GaussianNoise, EuclideanLaplaceNoise):
        right = mechanism.sample
        monkeypatch.setattr(
            mechanism, "sample", lambda self, *a, right=right, **k: factor * right(self, *a, **k)
        )
    with pytest.raises(AssertionError):
        check_local(name)


@pytest.mark.parametrize("name", LOCAL)
def test_a_mod_that_passes_the_raw_model_on_is_caught(name, monkeypatch):
    right = ClientParty.release
    monkeypatch.setattr(
        ClientParty, "release", lambda self, raw, facts: right(self, raw, facts) and raw[:1]
    )
    with pytest.raises(AssertionError):
        check_local(name)


@pytest.mark.parametrize("name", LOCAL)
def test_nothing_but_the_noised_model_leaves_under_local_trust(name):
    federation, found = one_round(name)
    for _, learned, sent, reply in found.values():
        assert set(reply.content) == {"arrays", "metrics", "fedveil.reply"}
        assert dict(reply.content["metrics"]) == {"num-examples": 1}
        assert set(reply.content["arrays"]) == set(federation.layout.names)
        assert not torch.equal(sent, learned.trained.model)
        assert not (sent == learned.trained.model).any() or name.startswith("fedre")


@pytest.mark.parametrize("name", [n for n in METHODS if n not in LOCAL])
def test_central_trust_passes_model_count_and_metrics(name):
    _, found = one_round(name)
    for _, learned, sent, reply in found.values():
        assert torch.equal(sent, learned.trained.model)
        expected = {"num-examples": learned.trained.examples, "train_loss": learned.trained.loss}
        expected |= {"fedveil.index": float(learned.chosen)} if name == "ifca" else {}
        assert dict(reply.content["metrics"]) == expected
        assert "fedveil.facts" not in reply.content


def check_server(name, factor=1.0):
    """The server's noise, from one round of clients that all reply; FedAdam's step is inverted by its own state."""
    federation, found = one_round(name)
    server = METHODS[name].server
    start = found[0][0]
    updates = clip(
        torch.stack([found[p][1].trained.model - start for p in sorted(found)]), server.clip
    )
    counts = torch.tensor(
        [float(found[p][1].trained.examples) for p in sorted(found)], dtype=torch.float64
    )
    weights = server.aggregator.weights(counts, CLIENTS)
    clean = server.aggregator.reduce(updates, weights)
    if name == "metric-fedadam":
        state = federation.server.state
        moved = getattr(state, "rule", state).first / (1 - server.aggregator.beta1)
    else:
        moved = federation.models[0] - start
    distance = 1.0
    if name.startswith("metric"):
        raw = torch.stack([found[p][1].trained.model for p in sorted(found)])
        blocks = [(b.start, b.stop) for b in federation.layout.blocks]
        pairs = [(i, j) for i in range(CLIENTS) for j in range(i)]
        distance = max(
            sum(float((raw[i, a:b] - raw[j, a:b]).norm()) for a, b in blocks) / len(blocks)
            for i, j in pairs
        )
    check_gaussian(
        moved - clean, server.noise_multiplier * server.clip / (CLIENTS * distance), factor
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NOISED)
def test_the_server_adds_noise_of_the_claimed_scale(name):
    check_server(name)
    for wrong in (0.5, 2.0):
        with pytest.raises(AssertionError):
            check_server(name, wrong)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NOISED)
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_planted_server_noise_of_the_wrong_scale_is_caught(name, factor, monkeypatch):
    right = GaussianNoise.sample
    monkeypatch.setattr(
        GaussianNoise, "sample", lambda self, *a, **k: factor * right(self, *a, **k)
    )
    with pytest.raises(AssertionError):
        check_server(name)
