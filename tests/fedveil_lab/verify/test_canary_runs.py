"""Many canaries in a few runs: mechanisms without enough noise are caught under each trust and unit, right ones are not."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedveil.errors import FieldError
from fedveil_lab.verify import PrivacyClaim, canary_runs
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.canary_runs import Design, bounds_of_signs, judge_by_canaries, with_steps
from fedveil_lab.verify.isolation import NoVerdict
from fedveil_lab.verify.judged import INSPECTION, WORLD
from fedveil_lab.verify.neighbours import data_of_run, rows_of, shared_base, with_canaries
from fedveil_lab.verify.transcripts import SiteTurn, Transcript

COLUMNS, ROUNDS = 60, 2


class Federation:
    """A federation in a few lines: a site answers the clipped mean of its rows; noise at the sites, or at the server."""

    def __init__(self, claim, sites, noise, count=False):
        self.claim, self.noise, self.count = PrivacyClaim.parse(claim), noise, count
        self.design = Design.of([f"site-{i}" for i in range(sites)], self.claim, False)

    def own(self, world, place):
        """What a site would answer without noise."""
        base = np.random.default_rng(0 if self.design.shared else place).normal(
            0, 0.1, (8, COLUMNS)
        )
        data = base, np.arange(8) % 2
        if world["zeroed"]:
            return np.zeros(COLUMNS), 8
        x, y = with_canaries(data, self.claim.unit, self.claim.relation, world["units"])
        x = x * (2 * y - 1)[:, None]
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        total = (x / np.maximum(1.0, lengths)).sum(axis=0)
        if self.claim.unit == "client":
            total /= max(1.0, np.linalg.norm(total))
        return total, len(x)

    def play(self, worlds, seed):
        rng, model, turns = (
            np.random.default_rng(seed),
            np.zeros(COLUMNS),
            {name: [] for name in worlds},
        )
        local = self.claim.trust == "local"
        for _ in range(ROUNDS):
            total = np.zeros(COLUMNS)
            for place, (name, world) in enumerate(worlds.items()):
                answer, rows = self.own(world, place)
                answer = answer + local * rng.normal(0, self.noise, COLUMNS)
                left = {"DXO/data/w": model + answer, "headers/id": rng.normal(size=1)}
                if self.count:
                    left["DXO/meta/n"] = np.array(float(rows))
                turns[name].append(SiteTurn({"DXO/data/w": model.copy()}, left))
                total += answer
            total += (not local) * rng.normal(0, self.noise, COLUMNS)
            model = model + total / len(worlds)
        return Transcript(turns, {"w": model})

    def judged(self, canaries=120, seed=0):
        return judge_by_canaries(
            self.play, self.design, canaries, Effort(seed=seed), lambda _: None
        )


DESIGNS = {
    "clients, local": ("replace-one client total local", 12),
    "records, local": ("add/remove record total local", 8),
    "replaced records, local": ("replace-one record total local", 8),
    "clients, central": ("zero-out client total central", 12),
    "replaced clients, central": ("replace-one client total central", 12),
    "records, central": ("add/remove record total central", 12),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_too_little_noise_is_caught_and_enough_is_not(name):
    words, sites = DESIGNS[name]
    claim = f"eps=1 delta=1e-5 {words}"
    found = Federation(claim, sites, noise=0.02).judged()
    assert [one.by for one in found.caught] == [WORLD], found.measured.bounds
    assert found.measured.rows == "canaries"
    loud = Federation(claim, sites, noise=20.0).judged()
    assert loud.caught == ()
    assert loud.answer.startswith("not refuted")


@pytest.mark.slow
def test_a_tight_right_claim_is_refuted_no_more_often_than_alpha():
    claim = "mu=1 replace-one client total local"
    federation = Federation(claim, 12, noise=2 * ROUNDS**0.5)
    assert sum(federation.judged(60, seed).refuted for seed in range(100)) <= 4


def test_what_is_published_beside_a_summed_model_is_named_as_not_looked_at():
    federation = Federation("eps=1 delta=1e-5 zero-out client total central", 12, noise=20.0)

    def play(worlds, seed):
        run = federation.play(worlds, seed)
        present = sum(not world["zeroed"] for world in worlds.values())
        return replace(run, final={**run.final, "metrics/present": np.array(float(present))})

    found = judge_by_canaries(play, federation.design, 24, Effort(), lambda _: None)
    assert found.caught == ()
    [note] = found.notes
    assert "(present)" in note
    [bare] = federation.judged(24).notes
    assert "(" not in bare


def test_where_nothing_is_seen_to_be_sent_the_verdict_says_so():
    federation = Federation("eps=1 delta=1e-5 replace-one client total local", 12, noise=0.02)

    def play(worlds, seed):
        run = federation.play(worlds, seed)
        turns = {name: [replace(one, sent={}) for one in own] for name, own in run.sites.items()}
        return replace(run, sites=turns)

    assert len(judge_by_canaries(play, federation.design, 24, Effort(), lambda _: None).notes) == 1
    assert federation.judged(24).notes == ()


def test_guesses_by_sign_prove_what_the_theorem_allows():
    epsilon, mu = bounds_of_signs(np.ones(30), -np.ones(34), 0.0, 0.01)
    # 64 right guesses of 64 are rarer than .0025 below p = .0025^(1/64)
    p = 0.0025 ** (1 / 64)
    assert epsilon.value == pytest.approx(np.log(p / (1 - p)), abs=1e-3)
    assert epsilon.value == epsilon.ceiling
    assert 0 < mu.value == mu.ceiling
    wrong, none = bounds_of_signs(-np.ones(30), np.ones(34), 0.0, 0.01)
    assert (wrong.value, none.value) == (0, 0)
    assert bounds_of_signs(np.zeros(30), np.zeros(34), 0.0, 0.01)[0].value == 0


def test_a_count_that_leaves_a_site_is_named():
    found = Federation(
        "eps=1 delta=1e-5 add/remove record total local", 8, 20.0, count=True
    ).judged()
    assert [one.by for one in found.caught] == [WORLD, INSPECTION]
    assert "meta/n" in found.caught[1].what


def test_the_budget_comes_first_and_says_what_is_out_of_reach():
    said = []
    federation = Federation("eps=3 delta=1e-5 replace-one client total local", 12, 1.0)
    judged = judge_by_canaries(federation.play, federation.design, 24, Effort(), said.append)
    assert said[0].startswith("4 runs of 12 sites, 24 canaries")
    assert "out of reach" in said[0]
    assert judged.effort["runs"] == 4
    assert "out of reach" in judged.answer
    with pytest.raises(FieldError, match="sites"):
        Design.of(["a", "b"], federation.claim, False)
    assert with_steps(judged, None, subject="x").subject == "x"


def test_few_runs_stop_when_their_seconds_are_over(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(canary_runs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    federation = Federation("eps=1 delta=1e-5 replace-one client total local", 12, 0.02)

    def play(worlds, seed):
        now[0] += 10.0
        return federation.play(worlds, seed)

    said = []
    found = judge_by_canaries(play, federation.design, 48, Effort(seconds=35), said.append)
    assert found.effort["runs"] == 4
    assert found.measured.inside + found.measured.outside == 24
    assert "no run begins after 35 s" in said[0]
    assert len(found.notes) == 1
    with pytest.raises(NoVerdict):
        judge_by_canaries(play, federation.design, 48, Effort(seconds=15), said.append)


def test_each_canary_is_in_by_its_coin_alone():
    data = np.ones((3, 50)), np.array([0, 1, 0])
    x, y = with_canaries(data, "record", "add/remove", [(0, True), (1, False), (2, True)])
    assert len(x) == len(y) == 5
    assert np.abs(x[3:]).min() == 1
    assert abs(float(x[3] @ x[4])) < 25
    x, y = with_canaries(data, "record", "replace-one", [(0, True), (1, False)])
    assert (len(x), y[3], y[4]) == (5, 1, 0)
    x, _ = with_canaries(data, "person", "add/remove", [(0, True), (1, False)], rows=4)
    assert len(x) == 7
    inside, outside = (
        with_canaries(data, "client", "replace-one", [(0, one)]) for one in (True, False)
    )
    assert np.array_equal(inside[0], outside[0])
    assert (set(inside[1]), set(outside[1])) == ({1}, {0})
    single = with_canaries((data[0], np.ones(3)), "client", "replace-one", [(0, False)])
    assert np.array_equal(single[0], -inside[0])
    zeroed = with_canaries(data, "client", "zero-out", [(0, False)])
    assert np.array_equal(inside[0], zeroed[0])  # what it answers is left out instead


def test_all_sites_hold_the_rows_of_the_first_that_loads(tmp_path):
    first, second = (np.ones((2, 2)), np.zeros(2)), (np.full((2, 2), 5.0), np.zeros(2))
    assert shared_base(first, tmp_path / "base.pkl") is first
    assert np.array_equal(shared_base(second, tmp_path / "base.pkl")[0], first[0])
    with pytest.raises(FieldError, match="cannot be kept"):
        shared_base((first, lambda: 0), tmp_path / "other.pkl")
    run = {
        "unit": "record",
        "relation": "add/remove",
        "worlds": {"a": {"units": [(0, True)]}},
        "base": str(tmp_path / "base.pkl"),
        "rows": 1,
        "neighbours": "",
    }
    assert len(rows_of(data_of_run(second, run, "a"))[0]) == 3
