"""The world that is judged is one that moves the answers: pairs with one seed compare worlds, other seeds judge."""

import numpy as np
import pytest

from fedveil_lab.verify import PrivacyClaim, player, playing
from fedveil_lab.verify.budget import KEPT, Effort, Stages
from fedveil_lab.verify.isolation import RunOutcome, SameProcess
from fedveil_lab.verify.pairs import alike, all_alike, paired_shift
from fedveil_lab.verify.playing import play
from fedveil_lab.verify.worlds import COLUMNS, Sizes, TwoWorlds, library

CLIENT = PrivacyClaim.parse("eps=1 delta=1e-5 zero-out client total central")
RECORD = PrivacyClaim.parse("eps=1 delta=0 add/remove record total central")


def judged(function, claim, *own, runs=700, seed=0, said=None):
    worlds = [*library(claim, Sizes(clients=8)), *own]
    say = (lambda _: None) if said is None else said.append
    return play(SameProcess(function), worlds, claim, Effort(runs=runs, seed=seed), say)


def answers(rows):
    """Outcomes with these numbers."""
    return [RunOutcome("ok", f"({len(row)},)", np.array(row), "", "", 0.0) for row in rows]


def votes_without_noise_on(entry):
    """Counts of each row's largest column, of which one has no noise."""

    def mechanism(data, seed):
        votes = np.zeros(data[0].shape[1])
        for rows in data:
            for row in rows:
                votes[int(np.argmax(row))] += 1
        noise = np.random.default_rng(seed).laplace(0, 1.0, votes.shape)
        noise[entry] = 0
        return votes + noise

    return mechanism


def clipped_gradients(scale):
    """Clipped gradients of a linear model whose label is the last column; without a label nothing moves."""

    def mechanism(data, seed):
        total = np.zeros(data[0].shape[1] - 1)
        for rows in data:
            one = -2 * rows[:, -1] @ rows[:, :-1]
            length = np.linalg.norm(one)
            if np.isfinite(length):
                total += one / max(1.0, length)
        return total + np.random.default_rng(seed).normal(0, scale, total.shape)

    return mechanism


@pytest.mark.parametrize("entry", [1, 3])
def test_an_entry_without_noise_is_seen_in_a_world_that_moves_it(entry):
    found = judged(votes_without_noise_on(entry), RECORD)
    assert found.refuted
    assert found.world.startswith(f"column {entry + 1}")


def test_a_gradient_that_labels_alone_move_is_refuted_and_its_dead_worlds_are_named():
    found = [judged(clipped_gradients(3.7307 / 8), CLIENT, seed=seed) for seed in range(2)]
    for one in found:
        assert one.refuted
        assert one.world.split(":")[0] in ("labelled", "scattered", "all coordinates")
        assert any("plain" in note and "labelled" not in note for note in one.notes)
    assert not judged(clipped_gradients(3.7307), CLIENT).refuted


def test_the_worlds_of_an_author_are_always_looked_at_again():
    zero = np.zeros((4, 4))
    dead = TwoWorlds("mine", "of its own", [zero] * 8, [zero] * 7 + [zero[:0]], of_author=True)
    said = []
    found = judged(clipped_gradients(3.7307), CLIENT, dead, said=said)
    again = [line for line in said if line.startswith("looked again")]
    assert len(again) == KEPT + 1
    assert any("mine" in line for line in again)
    assert not found.world.startswith("mine")
    assert Stages(700, 20, own=3).kept == KEPT + 3
    assert Stages(700, 3, own=3).kept == 3


def test_where_no_world_moves_the_answers_the_verdict_says_so():
    found = judged(lambda data, seed: np.random.default_rng(seed).normal(), CLIENT)
    assert not found.refuted
    assert any("in no world" in note for note in found.notes)


@pytest.mark.parametrize("runs", [400, 2000])
def test_noise_that_follows_no_seed_is_compared_too(runs):
    rng = np.random.default_rng(1)

    def unseeded(data, _seed):
        return 8.0 * float(data[-1][:, -1:].sum() > 0) + rng.normal()

    found = judged(unseeded, CLIENT, runs=runs)
    assert found.refuted
    assert any("does not repeat" in note for note in found.notes)


def test_pairs_share_a_seed_and_judged_runs_do_not():
    class Noted(SameProcess):
        def run(self, world, seed):
            seeds.append(seed)
            return super().run(world, seed)

    seeds = []
    worlds = library(CLIENT, Sizes())
    noisy = Noted(lambda data, seed: data[-1].sum() + np.random.default_rng(seed).normal())
    play(noisy, worlds, CLIENT, Effort(runs=600))
    stages = Stages(600, len(worlds))
    looked = seeds[7 : len(seeds) - 2 * stages.judged]  # after seven runs that measure the time
    assert looked[::2] == looked[1::2]
    last = seeds[len(seeds) - 2 * stages.judged :]
    assert len({*last}) == len(last)
    assert not {*last} & {*looked}


def test_a_mechanism_that_proves_faster_uses_its_time(monkeypatch):
    now = 0.0
    for room in (player, playing):
        monkeypatch.setattr(room, "monotonic", lambda: now)

    class Warming(SameProcess):
        def run(self, world, seed):
            nonlocal now
            now += 0.1 if now < 1 else 0.02
            return super().run(world, seed)

    noisy = Warming(lambda data, seed: data[-1].sum() + np.random.default_rng(seed).normal())
    found = play(noisy, library(CLIENT, Sizes()), CLIENT, Effort())
    assert 55 < now <= 60
    assert found.effort["runs"] > 2000


def test_a_shift_is_exact_where_noise_is_shared():
    noise = np.random.default_rng(0).normal(0, 1, (4, 3))
    shifted = answers(noise + np.array([0.0, 0.5, 0.0]))
    found = paired_shift(shifted, answers(noise), "(3,)")
    assert found == pytest.approx(0.5 / noise[:, 1].std(), rel=1e-6)
    assert paired_shift(answers(noise), answers(noise), "(3,)") == 0
    assert all_alike(answers(noise), answers(noise))
    assert not alike(shifted[0], answers(noise)[0])
    nan = answers([[np.nan]])[0]
    assert alike(nan, nan)


def test_a_number_without_noise_is_decisive_and_chance_is_taken_off():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (4, 2))
    noise[:, 1] = 0.0
    assert paired_shift(answers(noise + np.array([0.0, 1e-3])), answers(noise), "(2,)") > 1e6
    chance = [
        paired_shift(answers(rng.normal(size=(8, 50))), answers(rng.normal(size=(8, 50))), "(50,)")
        for _ in range(40)
    ]
    assert np.mean(np.array(chance) < 0.5) > 0.9
    assert paired_shift(answers(noise), answers(noise[:, :1]), "(2,)") == 0


def between_0_and_1(data):
    """The first column's numbers in [0, 1], of all rows."""
    column = np.concatenate(data)[:, 0]
    return np.clip(column[np.isfinite(column)], 0, 1)


def noisy_median(data, seed):
    """A median with noise for a mean's sensitivity: one record can move it by half, or by all."""
    column = between_0_and_1(data)
    middle = np.median(column) if len(column) > 2 else 0.5
    return middle + np.random.default_rng(seed).laplace(0, 1 / max(1, len(column)))


def test_a_median_that_one_record_moves_is_refuted_where_half_the_rows_are_zeros_and_half_ones():
    found = judged(noisy_median, RECORD, runs=1500)
    assert found.refuted
    assert found.world.startswith("half and half")


@pytest.mark.parametrize("unit", ["client", "record", "person"])
@pytest.mark.parametrize("clients", [2, 3, 8])
def test_half_and_half_and_one_behind_are_at_the_tipping_point(unit, clients):
    claim = PrivacyClaim.parse(f"eps=1 delta=0 replace-one {unit} total central")
    worlds = {one.name: one for one in library(claim, Sizes(clients=clients))}
    half, behind = worlds["half and half"], worlds["one behind"]
    medians = [np.median(between_0_and_1(side)) for side in (half.inside, half.outside)]
    assert medians == [1, 0] or (unit == "client" and clients == 2)
    counts = [np.concatenate(side).sum(axis=0) for side in (behind.inside, behind.outside)]
    assert counts[0][0] >= counts[0][1]
    assert counts[1][0] < counts[1][1]


def test_columns_that_the_data_lack_make_no_world():
    for columns in (1, 4, 16):
        names = [one.name for one in library(CLIENT, Sizes(columns=columns))]
        assert len({*names} & {*COLUMNS}) == min(columns, 8) - 1
