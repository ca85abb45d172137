"""Probes see a round as the server does, and their figures stand in its record."""

import pytest
import torch

from engine_kit import federation, learned
from fedveil.accounting import model_of
from fedveil.engines import Lockstep
from fedveil.errors import FieldError
from fedveil_lab.attacks import ServerView


class Spread:
    """The largest distance of a received model from the broadcast."""

    name = "largest update received"
    figures = ("spread",)

    def __init__(self):
        self.seen = []

    def __call__(self, seen):
        self.seen.append(seen)
        start = seen.broadcast.models[0]
        return {"spread": max(float((model_of(r) - start).norm()) for r in seen.received.values())}


class Named(Spread):
    def __init__(self, name, figures, values):
        self.name, self.figures, self.values = name, figures, values

    def __call__(self, seen):
        return self.values


def test_figures_land_in_the_record_and_change_nothing():
    probe = Spread()
    made = federation("sga-ldp", probes=[probe])
    rounds, plain = made.run(2).rounds, federation("sga-ldp").run(2).rounds
    assert [set(r.figures) for r in rounds] == [{"spread"}] * 2
    assert [r.figures for r in plain] == [{}] * 2
    assert [r.round for r in rounds] == [r.round for r in plain]
    first, second = probe.seen
    assert torch.equal(first.models, second.broadcast.models)
    assert torch.equal(second.models, made.models)
    assert first.record.round.number == 1
    assert first.federation is made
    assert rounds[0].figures["spread"] == pytest.approx(
        max(
            float((model_of(r) - first.broadcast.models[0]).norm()) for r in first.received.values()
        )
    )


def test_what_the_server_sees_is_what_left_the_clients():
    view = ServerView()
    made = federation("sga-ldp", probes=[view])
    records = made.run(3).rounds
    assert [(r.round, r.partition) for r in view.received] == [
        (t, p) for t in (1, 2, 3) for p in range(4)
    ]
    assert torch.equal(view.received[4].starts, view.received[5].starts)
    assert not torch.equal(view.received[0].starts, view.received[4].starts)
    mean = torch.stack([r.model for r in view.received[-4:]]).to(torch.float64).mean(0)
    assert torch.allclose(
        made.models[0].to(torch.float64), mean, atol=1e-6
    )  # SGA-LDP's server takes the plain mean
    sigma = records[0].client_scales[0][0]
    assert (
        float(view.received[0].update.norm()) > 0.5 * sigma * len(mean) ** 0.5
    )  # the noise is in it


def test_the_view_keeps_nothing_unusable():
    view = ServerView()
    federation("vanilla", probes=[view], faults={2: "nan"}).run(1)
    assert [r.partition for r in view.received] == [0, 1, 3]


def test_in_lockstep_each_federation_has_its_own_probes():
    probe, other = Spread(), Spread()
    one = federation("vanilla", probes=[probe])
    two = federation("vanilla", probes=[other], seed=8, learner=one.learner)
    one.learner.learn_together = lambda tasks: [learned(one.learner, task) for task in tasks]
    played = next(iter(Lockstep([one, two]).rounds(1)))
    assert [s.federation for s in probe.seen + other.seen] == [one, two]
    assert played[0].figures != played[1].figures


def test_figures_that_a_probe_does_not_name_or_that_come_twice_are_refused():
    with pytest.raises(FieldError, match="probe 'odd'"):
        federation("vanilla", probes=[Named("odd", ("a",), {"b": 1.0})]).run(1)
    with pytest.raises(FieldError, match="another probe"):
        federation("vanilla", probes=[Named(n, ("a",), {"a": 1.0}) for n in ("x", "y")]).run(1)
