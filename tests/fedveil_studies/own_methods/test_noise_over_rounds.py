"""`fedveil verify`'s noise table: sound noise passes at the stated rate, and planted bugs are found."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.mechanisms import GaussianNoise, ReproducibleSource
from fedveil.methods import METHODS
from fedveil_lab.attacks import bound
from fedveil_lab.attacks.residuals import departures
from fedveil_studies import own_methods
from fedveil_studies.own_methods import game, noise
from fedveil_studies.own_methods.noise import LEVEL

D = 300
ROWS = sum(len(noise.methods(d)) for d in own_methods.DIMENSIONS)
FOUND = LEVEL / ROWS  # a row of `fedveil verify` says no below this
SOME = torch.randperm(D, generator=torch.Generator().manual_seed(3))


class Planted(ReproducibleSource):
    """A library with a bug: what a party's stream of a round gives is another than it should be."""

    def __init__(self, seed, bug, *, round_=0, _key=()):
        super().__init__(seed, _key=_key)
        self.bug, self.round = bug, round_

    def child(self, *key):
        if len(key) == 4:  # (party, round, purpose, attempt)
            party, round_, purpose, attempt = key
            key = (*self.bug.key(party, round_), purpose, attempt)
            return Planted(self._seed, self.bug, round_=round_, _key=(*self._key, *key))
        return Planted(self._seed, self.bug, _key=(*self._key, *key))

    def normal(self, size, dtype=torch.float64):
        drawn = super().normal(size, dtype)
        return self.bug.change(drawn, self.round) if size > 1 else drawn


class Bug:
    """No bug yet."""

    def __init__(self, key=lambda party, t: (party, t), change=lambda z, t: z):
        self.key, self.change = key, change


def on(coordinates, factor, when=lambda t: True):
    """Noise times a factor on some coordinates, in some rounds."""

    def change(z, t):
        if when(t):
            z[coordinates[coordinates < len(z)]] *= factor
        return z

    return change


def odd(t):
    return t % 2 == 1


BUGS = {
    "no noise in odd rounds": Bug(change=lambda z, t: z * (t % 2 == 0)),
    "no noise in even rounds": Bug(change=lambda z, t: z * odd(t)),
    "no noise in round 7": Bug(change=lambda z, t: z * (t != 7)),
    "half the noise in every second round": Bug(change=lambda z, t: z * (0.5 if odd(t) else 1)),
    "used again from the round before in odd rounds": Bug(
        lambda party, t: (party, t - (odd(t) and t > 1))
    ),
    "used again from two rounds before": Bug(lambda party, t: (party, t - 2 if t > 2 else t)),
    "used again from two rounds before, once": Bug(lambda party, t: (party, 4 if t == 6 else t)),
    "used again, the sign turned": Bug(
        lambda party, t: (party, t - odd(t)), lambda z, t: -z if odd(t) else z
    ),
    "half of it used again": Bug(
        change=lambda z, t: (
            (z + torch.randn(len(z), generator=torch.Generator().manual_seed(t // 2)))
            / math.sqrt(2)
        )
    ),
    "none on 1 coordinate": Bug(change=on(SOME[:1], 0.0)),
    "none on 50 coordinates": Bug(change=on(SOME[:50], 0.0)),
    "none on 1 coordinate in odd rounds": Bug(change=on(SOME[:1], 0.0, odd)),
    "none on 1 coordinate in one round": Bug(change=on(SOME[:1], 0.0, lambda t: t == 4)),
    "half the noise on 1 coordinate": Bug(change=on(SOME[:1], 0.5)),
    "half the noise on 1 coordinate in odd rounds": Bug(change=on(SOME[:1], 0.5, odd)),
    "half the noise on 50 coordinates in odd rounds": Bug(change=on(SOME[:50], 0.5, odd)),
    "one draw for all coordinates": Bug(change=lambda z, t: z[:1].expand(len(z)).clone()),
    "two coordinates share their noise": Bug(
        change=lambda z, t: z.index_copy(0, SOME[:1] % len(z), z[SOME[1:2] % len(z)])
    ),
    "a twentieth too little": Bug(change=lambda z, t: 0.95 * z),
    "twice the noise": Bug(change=lambda z, t: 2 * z),
    "uniform noise": Bug(change=lambda z, t: math.sqrt(12) * (torch.special.ndtr(z) - 0.5)),
}
PLAYED = {
    one.name: one
    for one in noise.methods(D)
    if one.name
    in ("global DP, FedAvg", "metric privacy, scale from releases", "SGA-LDP, released similarity")
}


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("bug", "name"), [(bug, list(PLAYED)[i % 3]) for i, bug in enumerate(BUGS)]
)
def test_a_planted_bug_is_found(bug, name):
    least = PLAYED[name].examine(Planted(1, BUGS[bug]))
    assert least.p < FOUND, least


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [one.name for one in noise.methods(11)])
def test_every_methods_noise_is_sound_and_is_found_used_again(name, monkeypatch):
    monkeypatch.setattr(noise, "PARTIES", 10)
    [one] = [one for one in noise.methods(11) if one.name == name]
    sound = one.examine(Planted(2, Bug()))
    assert sound.p > FOUND, sound
    if name != "secure source":  # which is the operating system's
        assert (
            one.examine(Planted(2, BUGS["used again from the round before in odd rounds"])).p
            < FOUND
        )


def test_clients_that_share_their_noise_are_found():
    shared = Bug(lambda party, t: ("everybody", t))
    assert PLAYED["SGA-LDP, released similarity"].examine(Planted(1, shared)).p < FOUND


def test_the_library_itself_without_noise_on_a_coordinate_ends_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(
        own_methods, "guarantees_game", partial(game.guarantees_game, dimensions=())
    )
    monkeypatch.setattr(own_methods, "noise_game", partial(game.noise_game, dimensions=(11,)))
    monkeypatch.setattr(noise, "PARTIES", 6)
    drawn = GaussianNoise.sample

    def sample(self, size, **options):
        found = drawn(self, size, **options)
        found[size // 2] = 0.0
        return found

    monkeypatch.setattr(GaussianNoise, "sample", sample)
    result = CliRunner().invoke(app, ["verify", "--runs", "8", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "not what their ledgers declare" in result.stderr
    assert "**NO**" in (tmp_path / "noise.md").read_text()


def test_in_the_game_a_round_without_noise_decides_alone():
    [case] = [
        case for case in own_methods.cases(11) if case.name == "global DP, FedAvg, three rounds"
    ]

    def proven(bug):
        source = Planted(1, bug)
        worlds = zip((1, 0), case.worlds, strict=True)
        scores = [
            np.array([case.score(world(source.child(w, r))) for r in range(100)])
            for w, world in worlds
        ]
        return bound(*scores).mu_lower

    assert proven(Bug()) <= case.claimed_mu
    assert proven(BUGS["no noise in odd rounds"]) > case.claimed_mu


# ---- the law under sound noise


def plays(count, shape):
    return [
        departures(
            torch.randn(*shape, generator=torch.Generator().manual_seed(s), dtype=torch.float64)
        )[0].p
        for s in range(count)
    ]


@pytest.mark.parametrize(("count", "shape"), [(300, (20, 10, 1)), (300, (3, 4, 11))])
def test_sound_noise_is_told_apart_no_more_often_than_stated(count, shape):
    p = np.array(plays(count, shape))
    for level in (0.05, 0.2):  # a bound: Bonferroni's
        assert (p < level).mean() <= level + 3 * math.sqrt(level / count)
    assert (p < 0.5).mean() > 0.2  # and not an empty one


def test_each_test_by_hand():
    z = torch.tensor([[[1.0, -1.0], [2.0, 0.5]], [[0.3, 0.7], [-1.5, 0.2]]], dtype=torch.float64)
    found = {one.kind: one for one in departures(z)}
    assert len(found) == 6
    # the smallest number is .2: a chance of .1585 that one is as small, 16 tests of single numbers, six kinds
    assert found["single"].p == 1
    z[0, 0, 0] = 1e-9
    smallest = {one.kind: one for one in departures(z)}["single"]
    assert smallest.p == pytest.approx(2 * 1e-9 / math.sqrt(2 * math.pi) * 16 * 6, rel=1e-6)
    assert "party 0, round 1, coordinate 0" in smallest.what
    coarse = {one.kind: one for one in departures(z, resolution=1e-3)}["single"]
    assert coarse.p == pytest.approx(2e-3 / math.sqrt(2 * math.pi) * 16 * 6, rel=1e-5)


def test_what_cannot_be_tested_is_refused():
    for z in (torch.zeros(3, 1, 4), torch.full((2, 2, 2), math.nan), torch.zeros(2, 2)):
        with pytest.raises(FieldError, match="noise"):
            departures(z)


QUIET = {  # sides that add no noise
    "Clusters",
    "PerturbationAware",
    "Plain",
    "ReportedClusters",
    "ReportsIndex",
    "SecureSum",
    "TrustedServer",
}


def test_every_method_of_the_library_is_played(monkeypatch):
    played = set()

    def note(side, *_, **__):
        played.add(type(side).__name__)

    for name in ("served_noise", "sent_noise", "trained_noise"):
        monkeypatch.setattr(noise, name, note)
    noise.methods(D)
    sides = [side for method in METHODS.values() for side in (method.client, method.server)]
    own = {side.__name__ for side in sides if side.__module__.startswith("fedveil.")}
    assert own == played | QUIET
