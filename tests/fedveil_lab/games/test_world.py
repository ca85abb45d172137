"""Who holds what in the replicates of an audit: both worlds are dealt alike, but for the target."""

import numpy as np
import pytest
import torch

from fedveil.errors import FieldError
from fedveil_lab.config import ConfigError, load, parse
from fedveil_lab.games import ParticipationGame
from fedveil_lab.games.game import settings_of
from fedveil_lab.games.pool import Pool, apportion
from fedveil_lab.games.roles import IN_ITS_PLACE, SHADOWS, WORLDS, AuditedConfig, World
from fedveil_lab.games.scoring import Case, never_drawn
from fedveil_lab.games.world import hand_out, shadow_of
from fedveil_lab.runs.prepare import prepare

BEFORE = ["43ec47b581b0-4dbbe0", "d737b9fcd5a0-4dbbe0"]  # first and last cell


def counts(*clients):
    return f"data.counts={list(clients)}"


@pytest.fixture(scope="module")
def digits():
    config = load("digits-cia", [counts([8] * 10, [8] * 10, [0] * 5 + [16] * 5)])
    return config, prepare(config).dealt


def rows(client):
    held = [] if client.test_x is None else [client.test_x]
    return {tuple(x.flatten().tolist()) for x in torch.cat([client.x, *held])}


def both(digits, seed=1, **roles):
    config, dealt = digits
    chosen = World.of(3, **roles)
    worlds = [chosen.model_copy(update={"inside": inside}) for inside in (True, False)]
    return [hand_out(config.data, dealt, world, seed) for world in worlds]


@pytest.mark.parametrize("world", WORLDS)
def test_the_worlds_differ_in_the_target_alone(digits, world):
    inside, outside = both(digits, stand_in=world)
    others = outside.clients if world == "remove" else outside.clients[:2]
    for a, b in zip(inside.clients, others, strict=False):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    for a, b in ((inside.shadow, outside.shadow), (inside.reference, outside.reference)):
        assert torch.equal(a.x, b.x)  # what the adversary holds does not tell it the answer
    assert (inside.target, outside.target) == (2, None)
    assert inside.missing == outside.missing
    target = inside.clients[2]
    if world == "remove":
        assert len(outside.clients) == 2
    elif world == "empty":
        assert (outside.clients[2].examples, outside.clients[2].held_out) == (0, 0)
    elif world == "itself":
        assert torch.equal(outside.clients[2].x, target.x)
    else:
        stand_in = outside.clients[2]
        assert (stand_in.examples, stand_in.held_out) == (target.examples, target.held_out)
        assert not rows(stand_in) & rows(target)
        low = (torch.cat([stand_in.y, stand_in.test_y]) < 5).sum()
        assert (low == 0) == (world == "twin")


def test_nobody_shares_examples(digits):
    inside, outside = both(digits, stand_in="replace", shadow="public")
    parties = [
        *map(rows, inside.clients),
        rows(outside.clients[2]),
        rows(inside.reference),
        rows(inside.shadow),
    ]
    assert sum(map(len, parties)) == len(set().union(*parties))
    assert inside.shadow.examples == round(0.1 * inside.clients[2].examples)


def test_replicates_are_dealt_anew_and_independently_in_the_two_worlds(digits):
    first, second = both(digits, seed=1)[0], both(digits, seed=2)[0]
    assert not torch.equal(first.clients[0].x, second.clients[0].x)
    seeds = {
        Case("x", "honest", p, w, i).seed(0)
        for p in ("rehearsal", "run")
        for w in (True, False)
        for i in range(5)
    }
    assert len(seeds) == 20
    assert Case("x", "honest", "run", True, 0).seed(0) == Case("y", "crafted", "run", True, 0).seed(
        0
    )


def test_shadow_data_are_what_their_kind_says(digits):
    _, dealt = digits
    target, rng = dealt.clients[2], np.random.default_rng
    clean = shadow_of(target, "clean", dealt.dataset, rng(0))
    assert clean.examples == round(0.1 * target.examples)
    assert rows(clean) <= rows(target)
    noisy = shadow_of(target, "noisy", dealt.dataset, rng(0))
    noise = noisy.x - clean.x
    assert torch.equal(noisy.y, clean.y)
    assert float(noise.std()) == pytest.approx(0.2 * float(dealt.dataset.x.max()), rel=0.1)
    partial = shadow_of(target, "partial", dealt.dataset, rng(0))
    assert len(set(partial.y.tolist())) <= 3
    assert set(SHADOWS) == {"clean", "noisy", "partial", "public"}
    inside, _ = both(digits, shadow="partial")
    assert len(inside.missing) >= 2
    assert set(inside.missing) == {5, 6, 7, 8, 9} - set(inside.shadow.y.tolist())


def test_adversaries_keep_their_places_when_the_target_is_gone(digits):
    inside, outside = both(digits, target=0, attacker=2, stand_in="remove")
    assert (inside.adversaries, outside.adversaries) == ((2, 1), (1, 0))
    assert torch.equal(inside.clients[2].x, outside.clients[1].x)


def test_roles_are_filled_in_and_checked():
    assert World.of(3).colluders == (0, 1)
    assert World.of(2).colluders == (0,)
    assert World.of(6, colluding=4).colluders == (0, 1, 2, 3)
    assert World.of(3, target=0) == World(target=0, colluders=(1, 2))
    for arguments, words in (
        ({"n": 1}, "needs at least two clients"),
        ({"n": 3, "target": 3}, "clients 0 to 2"),
        ({"n": 3, "attacker": 2}, "is the target itself"),
        ({"n": 3, "stand_in": "empti"}, "did you mean 'empty'"),
        ({"n": 3, "shadow": "partiel"}, "did you mean 'partial'"),
        ({"n": 3, "colluding": 3}, "there are 2 clients besides the target"),
    ):
        with pytest.raises(FieldError, match=words):
            World.of(**arguments)
    assert set(WORLDS) == set(IN_ITS_PLACE)


def test_what_nobody_can_hold_is_refused(digits):
    _, dealt = digits
    greedy = load("digits-cia", [counts([20] * 10, [0] * 10, [0] * 5 + [95] * 5)])
    with pytest.raises(
        FieldError, match=r"--out-world = 'twin': needs another client with the target's classes"
    ):
        hand_out(greedy.data, dealt, World.of(3, stand_in="twin"), 0)
    full = load("digits-cia", [counts([80] * 10, [0] * 10, [80] * 10)])
    with pytest.raises(
        FieldError, match=r"--out-world = 'replace': needs another client of 800 examples"
    ):
        hand_out(full.data, dealt, World.of(3), 0)
    with pytest.raises(FieldError, match=r"--target = 1: has no training examples"):
        hand_out(full.data, dealt, World.of(3, target=1), 0)


def test_a_pool_gives_each_example_once(digits):
    _, dealt = digits
    x, y = dealt.dataset.x[:100], dealt.dataset.y[:100]
    pool, rng = Pool(x, y, dealt.dataset), np.random.default_rng(0)
    share = np.full(10, 0.1)
    taken = torch.cat(
        [pool.take(30, share, rng), pool.take(40, share, rng), pool.take(30, share, rng)]
    )
    assert sorted(taken.tolist()) == list(range(100))
    assert pool.left == 0
    assert pool.short_of(10, share) == tuple(range(10))
    assert apportion(7, np.array([0.5, 0.3, 0.2])) == [4, 2, 1]


def test_a_target_in_no_cohort_is_noticed():
    config = load("digits-cia", ["rounds=1", "clients_per_round=1"])
    cases = [Case("global", "honest", "run", True, i) for i in range(30)]
    lost = never_drawn(config, 3, World.of(3), cases)
    assert 10 < len(lost) < 29  # two of three rounds go to others
    assert not never_drawn(
        config.model_copy(update={"clients_per_round": None}), 3, World.of(3), cases
    )


def test_settings_are_planned_with_the_undefended_one_first():
    config = load("digits-cia")
    assert [p.label for p in settings_of(config, False)] == ["vanilla", "global"]
    planned = settings_of(config, True)
    assert [p.label for p in planned] == [
        "vanilla",
        "global DP",
        "metric privacy",
        "global (equal sigma)",
    ]
    assert [p.matches for p in planned] == ["", "", "", "metric privacy"]
    cases = ParticipationGame(config, True, ("active",), 6).cases
    assert (
        len(cases) == len(set(cases)) == 4 * 2 * 2 * (6 + 8)
    )  # honest ones too: sigma is matched on those
    single = ParticipationGame(config, False, ("active",), 6)
    assert len(single.cases) == 2 * 2 * (6 + 8)
    keys = {cell.key for cell in single.cells()}
    assert len(keys) == len(single.cells())
    kinds = {cell.kind for cell in single.cells()}
    assert len(kinds) == 2  # one a setting: its runs are played side by side


def test_a_matched_setting_takes_the_sigma_of_all_rehearsals_with_the_target():
    game = ParticipationGame(load("digits-cia"), True, ("loss",), 30)
    last = game.of_case[Case("global (equal sigma)", "honest", "run", False, 3)]
    sources = [
        game.of_case[Case("metric privacy", "honest", "rehearsal", True, i)].key for i in range(15)
    ]
    assert [cell.key for cell in last.sources] == sources


def test_the_table_of_an_audit_makes_a_configuration_of_its_own():
    config = load("digits-cia")
    world = {"target": 2, "colluders": [0, 1], "inside": False}
    read = parse({**config.to_dict(), "world": world})
    assert isinstance(read, AuditedConfig)
    assert (read.world.target, read.world.inside, read.data_seed) == (2, False, 0)
    assert (
        parse(read.to_dict())
        == read
        == AuditedConfig.of(config, World.of(3).model_copy(update={"inside": False}))
    )
    assert not hasattr(config, "world")
    for table, field in (
        ({"stopping": {"clients": 0.3}}, "stopping"),
        ({"malicious": {"behaviour": "free-rider", "clients": [0]}}, "malicious"),
    ):
        with pytest.raises(ConfigError) as refused:
            parse({**config.to_dict(), "world": world, **table})
        assert refused.value.problems[0].field == field


def test_keys_of_cells_are_those_from_before_the_table_was_the_games():
    """The keys are of 4c03ad49, where `Config` itself had the table."""
    game = ParticipationGame(load("digits-cia"), attacks=("active", "loss"), replicates=6)
    keys = [cell.key for cell in game.cells()]
    assert [keys[0], keys[-1]] == BEFORE


def test_every_run_of_a_shared_deal_has_the_same_data_and_shadow(digits):
    _, dealt = digits
    world = World.of(3, stand_in="remove", shadow="noisy").model_copy(update={"anew": False})
    inside, outside = (
        hand_out(None, dealt, world.model_copy(update={"inside": here}), seed)
        for here, seed in ((True, 1), (False, 2))
    )
    assert len(inside.clients) == len(outside.clients) + 1 == 3
    assert torch.equal(inside.clients[0].x, dealt.clients[0].x)
    assert torch.equal(inside.shadow.x, outside.shadow.x)
