"""Protecting a cohort together is protecting it one by one, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_kit import federation, images
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.layout import Layout
from fedveil.mechanisms import EuclideanLaplaceNoise, ReproducibleSource
from fedveil.mechanisms.noise import euclidean_laplace_rows
from fedveil.mechanisms.source import _philox
from fedveil.methods import SGALDP, Broadcast, ClientFacts, GroupPrivacy, PublicFacts


@given(
    n=st.integers(2, 40),
    d=st.integers(1, 1024),
    kind=st.sampled_from([torch.float32, torch.float64]),
    radius=st.sampled_from([None, 0.5]),
    distribution=st.sampled_from(["laplace", "gaussian"]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_each_row_is_what_its_client_would_send_alone(n, d, kind, radius, distribution, seed):
    g = torch.Generator().manual_seed(seed)
    starts, models = torch.randn(3, d, generator=g, dtype=kind), torch.randn(n, d, generator=g, dtype=kind)
    models[0] = starts[0]  # did not move
    models[1, 0] = torch.inf
    broadcast = Broadcast(models=starts, public=PublicFacts(round=1, rounds=2, cohort=n, dimension=d))
    layout = Layout.from_shapes({"w": (d,)}, dtype=kind)
    facts = [ClientFacts(broadcast=broadcast, layout=layout, chosen=i % 3) for i in range(n)]
    kinds = {"radius": radius, "distribution": distribution if radius else "laplace"}
    side, source = GroupPrivacy(noise_multiplier=0.7, **kinds), ReproducibleSource(seed)
    states = [side.init()] * n
    together = side.protect_each(models, facts, states, [source.child(i) for i in range(n)])
    assert together[:2] == [None, None]
    for i in range(2, n):
        alone = side.protect(release(models[i]), facts[i], states[i], source.child(i))
        assert together[i] is not None
        assert torch.equal(together[i].releases[0].value, alone.releases[0].value)
        assert together[i].spend == alone.spend


@given(
    n=st.integers(2, 30),
    d=st.integers(1, 1024),
    kind=st.sampled_from([torch.float32, torch.float64]),
    options=st.sampled_from([{}, {"epsilon_max": 1.0}, {"similarity": "released"}]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=40)
def test_sga_ldp_is_the_same_together_and_alone_over_rounds(n, d, kind, options, seed):
    g = torch.Generator().manual_seed(seed)
    side, source = SGALDP(**{"epsilon_min": 1.0, "epsilon_max": 5.0, **options}), ReproducibleSource(seed)
    layout = Layout.from_shapes({"w": (d,)}, dtype=kind)
    states, alone = [side.init()] * n, [side.init()] * n
    for round_ in (1, 2, 3):
        models = torch.randn(n, d, generator=g, dtype=kind)
        models[0] = float("nan")
        start = torch.randn(1, d, generator=g, dtype=kind)
        broadcast = Broadcast(models=start, public=PublicFacts(round=round_, rounds=3, cohort=n, dimension=d))
        facts = [ClientFacts(broadcast=broadcast, layout=layout)] * n
        together = side.protect_each(models, facts, states, [source.child(round_, i) for i in range(n)])
        assert together[0] is None
        asked = [i for i in range(1, n) if (i + round_) % 4]  # the others miss the round
        for i in asked:
            one = side.protect(release(models[i]), facts[i], alone[i], source.child(round_, i))
            assert torch.equal(together[i].releases[0].value, one.releases[0].value)
            assert together[i].spend == one.spend
            assert torch.equal(together[i].state.released, one.state.released)
            alone[i] = one.state
        states = [together[i].state if i in asked else s for i, s in enumerate(states)]


def release(model):
    from fedveil.accounting import Release

    return (Release("model", model), Release("count", torch.tensor(3.0)))


def test_noise_by_rows_needs_scales():
    sources = [ReproducibleSource(i) for i in range(2)]
    drawn = euclidean_laplace_rows(torch.tensor([2.0, 3.0], dtype=torch.float64), 5, sources, torch.float64)
    for i, epsilon in enumerate((2.0, 3.0)):
        assert torch.equal(drawn[i], EuclideanLaplaceNoise(epsilon).sample(5, source=ReproducibleSource(i)))
    with pytest.raises(ValueError, match="epsilon"):
        euclidean_laplace_rows(torch.tensor([2.0, 0.0], dtype=torch.float64), 5, sources, torch.float64)


@pytest.mark.parametrize("options", [{}, {"clients_per_round": 3}, {"faults": {1: "raise", 2: "nan"}}])
def test_a_federation_has_the_same_models_states_and_ledgers(options, monkeypatch):
    def ran():
        made = federation("group", n=5, **options)
        history = made.run(3)
        return made, history

    one, first = ran()
    monkeypatch.setattr(GroupPrivacy, "protect_each", lambda self, models, facts, states, sources: [None] * len(facts))
    two, second = ran()
    assert torch.equal(first.models, second.models)
    for p in range(5):
        assert one.party(p).ledger.entries == two.party(p).ledger.entries
    assert [r.round for r in first.rounds] == [r.round for r in second.rounds]
    assert [r.zeroed for r in first.rounds] == [r.zeroed for r in second.rounds]


def test_a_cohort_is_protected_in_one_computation_but_for_those_who_differ(monkeypatch):
    sizes, alone = [], []
    each, protect = GroupPrivacy.protect_each, GroupPrivacy.protect
    monkeypatch.setattr(GroupPrivacy, "protect_each", lambda self, *a: sizes.append(len(a[0])) or each(self, *a))
    monkeypatch.setattr(GroupPrivacy, "protect", lambda self, *a: alone.append(self) or protect(self, *a))
    made = federation("group", n=5)
    made.client_sides[2] = own = replace(made.method.client, noise_multiplier=9.0)
    made.run(2)
    assert sizes == [4, 4]
    assert [side is own for side in alone if not side.radius].count(True) == 3  # rehearsed once, and two rounds
    assert len(alone) == 2 + 2  # a zero update is rehearsed once for all clients with one side


@pytest.mark.parametrize("key", [0, 5, 2**64 - 1, 2**64, 2**100 + 17, 2**128 - 1])
def test_streams_are_philox_with_that_key(key):
    ours, theirs = (np.random.Generator(p) for p in (_philox(key), np.random.Philox(key=key)))
    for _ in range(2):
        assert (ours.standard_normal(33) == theirs.standard_normal(33)).all()
        assert (ours.standard_normal(7, dtype=np.float32) == theirs.standard_normal(7, dtype=np.float32)).all()
        assert (ours.integers(0, 1 << 53, size=9) == theirs.integers(0, 1 << 53, size=9)).all()


def test_single_draws_are_those_of_a_row():
    one, row = ReproducibleSource(3), ReproducibleSource(3)
    for _ in range(20):
        assert one._one_normal() == float(row.normal(1)[0])
        assert one._one_uniform() == float(row.uniform(1)[0])
    assert images(0).examples == 6
