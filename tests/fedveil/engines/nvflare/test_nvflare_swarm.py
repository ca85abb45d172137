"""A swarm: each peer protects itself, each aggregates in turn, and what holds nowhere in a swarm is refused."""

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.swarm_client_ctl import SwarmClientController
from safetensors.torch import load_file

import fedveil as fv
from fedveil.accounting import Release
from fedveil.engines import Execution, messages
from fedveil.engines.nvflare.shareables import write_reply
from fedveil.engines.nvflare.swarm import ANSWERED, ATTEMPTS, SwarmPeer, SwarmServer
from fedveil.errors import FieldError, NoReplyError
from fedveil.learning import LocalTraining
from fedveil.methods import build
from fedveil.nvflare import PrivacyFilter, protect
from hello_kit import FOUR, SITES, SimpleNetwork, people
from test_nvflare_recipes import CLIENT, HERE, MODEL, RECORD, TRAINED, exported, site

swarms = pytest.importorskip(
    "nvflare.app_opt.pt.recipes.swarm", reason="this FLARE has no recipe of a swarm"
)
pytestmark = pytest.mark.nvflare
ROUNDS = 3
SUMMED = {"sum": "secure", "least_sites": 3, "lr": 0.1, "rounds": ROUNDS}
SECURE = {**RECORD, **SUMMED}
PERSON = {
    "unit": "person",
    "people": 50,
    "records_per_person": 2,
    "noise_multiplier": 1.0,
    "clip": 0.5,
}
PLAYED = {
    "SGA-LDP": ("sga-ldp", {}),
    "records, no trust": ("record", RECORD),
    "persons, no trust": ("record", PERSON),
    "records, secure sum": ("record", SECURE),
    "persons, secure sum": ("record", {**PERSON, **SUMMED}),
}
LAYOUT = fv.Layout.from_module(SimpleNetwork())


def context(sender="site-1", model=None):
    fl_ctx, peer = FLContext(), FLContext()
    engine = SimpleNamespace(get_workspace=lambda: SimpleNamespace(get_run_dir=lambda job: "."))
    for name, value in (
        ("__identity_name__", "site-1"),
        ("__run_num__", "job-1"),
        ("__engine__", engine),
    ):
        fl_ctx.put(name, value, private=True, sticky=False)
    peer.put("__identity_name__", sender, private=False, sticky=False)
    fl_ctx.set_peer_context(peer)
    if model is not None:
        fl_ctx.put(AppConstants.GLOBAL_MODEL, model, private=True, sticky=False)
    return fl_ctx


def server(parameters=RECORD, sites=SITES, **changes):
    given = {
        "model": MODEL,
        "method": "record",
        "rounds": ROUNDS,
        "parameters": parameters,
        "seed": 1,
    }
    return SwarmServer(**{**given, "sites": sites, **changes})


def reply(value, method="record", parameters=RECORD):
    client = build(method, **parameters).client
    return write_reply((Release("model", torch.full((LAYOUT.size,), value)),), LAYOUT, client)


def share(value):
    client = build("record", **SECURE).client
    return write_reply(
        (Release("share", torch.full((LAYOUT.size,), value, dtype=torch.int64)),), LAYOUT, client
    )


def facts(shareable):
    meta = from_shareable(shareable).meta
    return meta[messages.PUBLIC], meta[ANSWERED]


def test_a_round_is_the_rules_own_whoever_aggregates():
    one = server(aggregator="fedmedian")
    model = one.load(context())
    for name, value in (("site-3", 5.0), ("site-1", 1.0), ("site-2", 2.0)):
        assert one.accept(reply(value), context(name))
    task = one.aggregate(context(model=model))
    assert facts(task) == ({**model[ModelLearnableKey.META][messages.PUBLIC], "round": 2}, SITES)
    combined = one.shareable_to_learnable(task, context())[ModelLearnableKey.WEIGHTS]
    for value in combined.values():
        torch.testing.assert_close(torch.as_tensor(value), torch.full(value.shape, 2.0))
    assert [log.used for log in one.history] == [(0, 1, 2)]


def test_what_is_not_protected_or_comes_twice_or_from_a_stranger_is_left_out():
    one = server()
    model = one.load(context())
    assert one.accept(reply(1.0), context("site-1"))
    assert not one.accept(reply(9.0), context("site-1"))
    assert not one.accept(reply(9.0), context("site-9"))
    assert not one.accept(
        one.learnable_to_shareable(model, context()), context("site-2")
    )  # without the mark
    assert not one.accept(reply(9.0, "sga-ldp", {}), context("site-2"))  # another method's
    assert not one.accept(make_reply("EXECUTION_EXCEPTION"), context("site-2"))
    with pytest.raises(NoReplyError):
        one.aggregate(context(model=model))
    assert one.history == []


def numbered(value, number):
    answer = reply(value)
    answer.set_header(AppConstants.CURRENT_ROUND, number)
    return answer


def test_a_reply_that_comes_after_its_round_was_combined_counts_in_no_other_round():
    one = server()
    model = one.load(context())
    for name in SITES[:2]:
        assert one.accept(numbered(1.0, 0), context(name))
    one.aggregate(context(model=model))
    assert not one.accept(numbered(9.0, 0), context(SITES[2]))
    assert one.accept(numbered(2.0, 3), context(SITES[2]))


def test_a_round_is_combined_once_its_last_reply_is_accepted(monkeypatch):
    """FLARE's gatherer counts a reply first and accepts it then, in its lock; another thread combines."""
    happened, lock = [], threading.Lock()
    monkeypatch.setattr(
        SwarmClientController, "_end_gather", lambda peer, gatherer: happened.append("combined")
    )
    lock.acquire()
    ending = threading.Thread(
        target=SwarmPeer(least=2)._end_gather, args=(SimpleNamespace(lock=lock),)
    )
    ending.start()
    ending.join(0.2)
    happened.append("accepted")
    lock.release()
    ending.join(10)
    assert happened == ["accepted", "combined"]


def test_a_sum_that_somebody_is_missing_from_is_asked_again_of_those_who_answered():
    one = server(SECURE, FOUR, least=3)
    model = one.load(context())
    for name in ("site-1", "site-2", "site-4"):
        assert one.accept(share(1), context(name))
    task = one.aggregate(context(model=model))
    asked, answered = facts(task)
    assert (asked["round"], asked["attempt"], len(asked["roster"]), answered) == (
        1,
        1,
        3,
        ["site-1", "site-2", "site-4"],
    )
    again = one.shareable_to_learnable(task, context())
    for name, value in again[ModelLearnableKey.WEIGHTS].items():
        assert torch.equal(
            torch.as_tensor(value), torch.as_tensor(model[ModelLearnableKey.WEIGHTS][name])
        )
    for name in ("site-1", "site-2"):
        assert one.accept(share(1), context(name))
    with pytest.raises(NoReplyError):  # two are too few
        one.aggregate(context(model=again))
    assert one.history == []


def test_a_round_is_asked_so_often_and_no_more():
    one = server(SECURE, [f"site-{i}" for i in range(8)], least=3)
    model, left = one.load(context()), 8
    for _ in range(ATTEMPTS - 1):
        left -= 1
        for name in one.sites[:left]:
            one.accept(share(1), context(name))
        model = one.shareable_to_learnable(one.aggregate(context(model=model)), context())
    for name in one.sites[: left - 1]:
        one.accept(share(1), context(name))
    with pytest.raises(NoReplyError):
        one.aggregate(context(model=model))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"method": "vanilla", "parameters": {}}, "method"),
        ({"method": "global", "parameters": {"noise_multiplier": 1.0}}, "method"),
        ({"method": "metric", "parameters": {}}, "method"),
        ({"method": "ifca", "parameters": {"hypotheses": 2}}, "method"),
        ({"parameters": {**RECORD, "sum": "trusted", "silos": 3, "rounds": ROUNDS}}, "sum"),
        ({"method": "group", "parameters": {"hypotheses": 2}}, "hypotheses"),
        ({"method": "fedre", "parameters": {}}, "method"),
        ({"aggregator": "fedavgm"}, "aggregator"),
        ({"aggregator": "fltrust"}, "method"),
        ({"aggregator": "trimmed-mean"}, "fraction"),
        ({"parameters": SECURE, "seed": None}, "keys"),
        ({"parameters": SECURE, "keys": {"site-1": "00"}}, "keys"),
        ({"parameters": {**SECURE, "lr": None}}, "lr"),
        ({"parameters": SECURE, "sites": SITES[:2]}, "sites"),
        ({"sites": ["site-1"]}, "sites"),
        ({"sites": ["site-1", "site-1"]}, "sites"),
    ],
)
def test_what_does_not_hold_in_a_swarm_is_refused(changes, field):
    with pytest.raises(FieldError) as refused:
        server(**changes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"method": "global", "parameters": {"noise_multiplier": 1.0}}, "method"),
        ({"parameters": {**RECORD, "sum": "trusted", "silos": 3, "rounds": ROUNDS}}, "sum"),
        ({"method": "sga-ldp", "parameters": {}, "training": None}, "training"),
    ],
)
def test_a_site_in_a_swarm_refuses_it_too(changes, field):
    given = {
        "model": MODEL,
        "method": "record",
        "parameters": RECORD,
        "seed": 1,
        "swarm": True,
        **TRAINED,
    }
    with pytest.raises(FieldError) as refused:
        PrivacyFilter(**{**given, **changes})
    assert refused.value.field == field


def swarm(names=SITES, **changes):
    given = {
        "name": "hello-swarm",
        "model": SimpleNetwork(),
        "num_rounds": ROUNDS,
        "train_script": CLIENT,
    }
    return swarms.SwarmLearningRecipe(**{**given, "min_clients": len(names), **changes})


def test_protect_changes_the_peers_of_a_swarm(tmp_path):
    said = []
    recipe = protect(swarm(), site=site(**TRAINED), seed=1, sites=SITES, say=said.append)
    _, client = exported(recipe, tmp_path)
    names = sorted(one["executor"]["path"].rpartition(".")[2] for one in client["executors"])
    assert names == ["FedVeilExecutor", "SwarmPeer"]
    assert [one["path"].rpartition(".")[2] for one in client["components"]] == ["SwarmServer"]
    assert not list(tmp_path.rglob("hello_client.py"))
    assert any("metric" in line for line in said)


def test_keys_name_the_peers(tmp_path):
    """As the page has it for production, where no environment names the peers."""
    keys = dict.fromkeys(SITES, "00" * 32)
    own = site(parameters=SECURE, **TRAINED)
    _, client = exported(protect(swarm(), site=own, keys=keys, say=lambda text: None), tmp_path)
    [part] = client["components"]
    assert part["args"]["sites"] == SITES


def test_a_rule_alone_leaves_the_script(tmp_path):
    sizes = {"weights": {"site-1": 500, "site-2": 100, "site-3": 100}, "cap": 0.5}
    said = []
    recipe = protect(swarm(), "vanilla", aggregator="fedmedian", **sizes, say=said.append)
    assert any("withstands 0 malicious of 3 peers" in line for line in said)
    _, client = exported(recipe, tmp_path)
    kinds = [one["path"].rpartition(".")[2] for one in client["components"]]
    assert "RuleAggregator" in kinds
    assert {"IntimeModelSelector", "InTimeAccumulateWeightedAggregator"}.isdisjoint(kinds)
    [rule] = [one for one in client["components"] if one["path"].endswith("RuleAggregator")]
    assert (rule["id"], rule["args"]["swarm"], rule["args"]["cap"]) == ("aggregator", True, 0.5)
    assert list(tmp_path.rglob("hello_client.py"))


@pytest.mark.parametrize(
    ("method", "given", "field"),
    [
        ("global", {"parameters": {"noise_multiplier": 1.0}}, "method"),
        ("vanilla", {"aggregator": {"name": "krum", "malicious": 1}}, "rule"),
        ("vanilla", {"aggregator": "fedavgm"}, "rule"),
        ("vanilla", {"aggregator": "trimmed-mean"}, "fraction"),
    ],
)
def test_protect_refuses_for_a_swarm_with_the_reason(method, given, field):
    with pytest.raises(FieldError) as refused:
        protect(swarm(), method, say=lambda text: None, **given)
    assert refused.value.field == field


def test_the_peers_take_turns():
    peer, turns = SwarmPeer(least=2), []
    peer.config = {"cwf.clients": FOUR}
    peer.engine = None
    model = server(sites=FOUR).load(context())
    task = server(sites=FOUR).learnable_to_shareable(model, context())

    for number in range(4):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("random.choice", lambda names: turns.append(names) or names[0])
            patched.setattr(peer, "set_learn_task", lambda **named: True)
            patched.setattr(peer, "send_learn_task", lambda **named: True)
            assert peer._scatter(task, number, context())
    assert turns == [[name] for name in FOUR]


def played(tmp_path, monkeypatch, names, parameters, training, method="record", **given):
    from nvflare.recipe import SimEnv

    source = str(Path(fv.__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([source, str(HERE), os.environ.get("PYTHONPATH", "")])
    )
    recipe = swarm(names, min_clients=3)
    protect(recipe, site=site(method, parameters, **training), seed=1, **given)
    recipe.execute(SimEnv(clients=names, workspace_root=str(tmp_path)))
    return sorted(tmp_path.rglob("fedveil/swarm.json"))


def embedded(parameters, method="record"):
    federation = fv.Federation(
        model=SimpleNetwork,
        clients=[people(name) for name in SITES],
        method=build(method, **parameters),
        seed=1,
        local=LocalTraining(lr=0.1),
        execution=Execution(trainer="sequential", run_id="simulate_job"),
    )
    return federation, federation.run(ROUNDS).models[0]


@pytest.mark.slow
@pytest.mark.parametrize("case", PLAYED)
def test_three_peers_end_in_the_embedded_bits_each_having_aggregated_once(
    case, tmp_path, monkeypatch, capfd
):
    method, parameters = PLAYED[case]
    training = {"training": {**TRAINED["training"], "data": "hello_kit:people"}}
    found = played(tmp_path, monkeypatch, SITES, parameters, training, method)
    federation, expected = embedded(parameters, method)
    assert len(found) == 3
    for said in found:
        assert json.loads(said.read_text()) == {"rounds": ROUNDS, "of": ROUNDS, "answered": SITES}
        assert torch.equal(
            federation.layout.flatten(load_file(said.with_name("model.safetensors"))), expected
        )
    logs = {
        name: "".join(p.read_text() for p in tmp_path.rglob(f"{name}/log.txt")) for name in SITES
    }
    assert [text.count("Start aggregation for round") for text in logs.values()] == [1, 1, 1]


LEAVING = {"training": {"data": "hello_kit:killed", "local": {"lr": 0.1}}}


@pytest.mark.slow
def test_four_peers_go_on_without_one_that_is_killed(tmp_path, monkeypatch):
    planned = {**SECURE, "rounds": ROUNDS + 1}  # a question that is put again is one more release
    found = played(tmp_path, monkeypatch, FOUR, planned, LEAVING, wait=5.0, ack=5)
    left = ["site-1", "site-2", "site-4"]
    ends = [json.loads(said.read_text()) for said in found if said.parts[-4] in left]
    assert {"rounds": ROUNDS, "of": ROUNDS, "answered": left} in ends


@pytest.mark.slow
def test_three_peers_stop_without_one_that_is_killed_and_nothing_is_summed(tmp_path, monkeypatch):
    with pytest.raises(Exception):  # noqa: B017, PT011  (FLARE's own, of its simulator)
        played(tmp_path, monkeypatch, SITES, SECURE, LEAVING, wait=5.0, ack=5, timeout=20.0)
    assert not list(tmp_path.rglob("fedveil/model.safetensors"))
