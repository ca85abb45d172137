"""What protects a node is its own: configuration, policy, and one ledger for its data set over all runs."""

import json
import multiprocessing
import os
import threading

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import nn

from fedveil.accounting import Limits, ParticipationFilter, Policy
from fedveil.engines.lifetime import LifetimeLedger
from fedveil.errors import FieldError, LedgerError
from fedveil.flower import (
    FACTS,
    FAILED,
    REFUSED,
    begin_ledger,
    from_arrays,
    privacy_mod,
    write_facts,
)
from fedveil.learning import LocalTraining, PrivateTrainer
from fedveil.methods import build
from flower_cases import METHODS
from test_flower_mod import GROUP, LAYOUT, D, ask, model_in, plain, trained

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("runtime")]
POLICY = """
methods = ["group", "sga-ldp"]
hypotheses_apart = 100.0

[total]
participations = 3
"""


def never(message, context):
    raise AssertionError("trained")


def node(run=1, run_config=None, **own):
    return Context(run, 99, {"partition-id": 2, **own}, RecordDict(), dict(run_config or {}))


@pytest.fixture
def folder(tmp_path):
    begin_ledger(tmp_path / "ledgers", 2, by="the tests", head=tmp_path / "ledgers-head")
    return str(tmp_path / "ledgers")


def in_(folder):
    """The ledger in a folder, with its head beside it."""
    return {"ledger": folder, "head": f"{folder}-head"}


def lines(folder):
    with open(f"{folder}/2.jsonl") as file:
        return [json.loads(line) for line in file][1:]


# ---- configuration


@pytest.mark.parametrize(
    "proposed",
    [{"privacy.method": "vanilla"}, {"privacy.method": "group"}, {"privacy.noise-multiplier": 1e-6},
     {"privacy.seed": 1}, {"privacy.rounds": 1}, {"privacy.ledger": "elsewhere"},
     {"privacy.head": "elsewhere"}, {"privacy.policy": "other.toml"},
     {"privacy.participations": 9}, {"privacy.leakage-cap": 1e9}, {"privacy.dataset": "other"}],
)  # fmt: skip
@pytest.mark.parametrize("own", [{}, {"privacy.method": "group"}, {"method": GROUP}])
def test_the_run_sets_nothing_without_a_policy(proposed, own):
    method = own.get("method")
    context = node(run_config=proposed, **{k: v for k, v in own.items() if k != "method"})
    reply = privacy_mod(LAYOUT, method, ledger="run")(ask(), context, plain)
    mine = set(proposed) <= set(own)  # the node's own word is the last
    assert reply.has_error() != mine
    assert "fedveil.ledger" not in context.state or mine


def test_a_seed_from_the_run_is_never_noise():
    # whoever knows the seed draws the noise again and takes it off
    lax = Policy(total=Limits(participations=9), secure_source=False)
    own = {"privacy.method": "group"}
    for policy in (None, Policy(total=Limits(participations=9)), lax):
        context = node(run_config={"privacy.seed": 1}, **own)
        assert (
            privacy_mod(LAYOUT, policy=policy, ledger="run")(ask(), context, never).error.code
            == FAILED
        )
    mod = privacy_mod(LAYOUT, policy=lax, ledger="run")
    assert not mod(
        ask(), node(**own, **{"privacy.seed": 1}), plain
    ).has_error()  # the node's own, for experiments


def test_a_policy_accepts_or_refuses_what_the_run_proposes(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    own = {"privacy.policy": str(path), "privacy.ledger": "run"}
    start = from_arrays(LAYOUT, ask().content["arrays"])
    reply = privacy_mod(LAYOUT)(ask(), node(run_config={"privacy.method": "group"}, **own), plain)
    assert float((model_in(reply) - start - 1).norm()) == pytest.approx(5.0 * D**0.5, rel=0.4)
    for proposed in ({"privacy.method": "vanilla"}, {"privacy.method": "fedre"}):
        reply = privacy_mod(LAYOUT)(ask(), node(run_config=proposed, **own), never)
        assert reply.error.code == REFUSED
        assert "policy" in reply.error.reason
    reply = privacy_mod(LAYOUT)(ask(), node(run_config={"privacy.ledger": "/tmp"}, **own), never)
    assert reply.error.code == FAILED


def test_a_policy_is_in_costs():
    method = {
        "privacy.method": "sga-ldp",
        "privacy.similarity": "released",
        "privacy.epsilon-min": 1.0,
    }
    policy = Policy(release=Limits(mu=1.0), total=Limits(mu=3.0))
    mod = privacy_mod(LAYOUT, policy=policy, ledger="run")
    assert not mod(ask(), node(run_config=method | {"privacy.epsilon-max": 4.0}), plain).has_error()
    reply = mod(
        ask(),
        node(run_config=method | {"privacy.epsilon-max": 400.0, "privacy.epsilon-min": 300.0}),
        never,
    )
    assert reply.error.code == REFUSED
    assert "mu = 1" in reply.error.reason


@pytest.mark.parametrize(
    ("text", "words"), [("total = 3", "policy.total"), ("no toml", "policy"), (None, "policy")]
)
def test_a_policy_that_cannot_be_read_lets_nothing_out(tmp_path, text, words, why):
    path = tmp_path / "policy.toml"
    if text is not None:
        path.write_text(text)
    reply = privacy_mod(LAYOUT, GROUP, ledger="run")(
        ask(), node(**{"privacy.policy": str(path)}), never
    )
    assert words in why(reply)


def test_training_beyond_the_deadline_is_a_zero_update():
    told, over = [], threading.Event()

    def endless(message, context):
        over.wait()
        return plain(message, context)

    policy = Policy(total=Limits(participations=2), deadline=0.5)
    mod = privacy_mod(
        LAYOUT, GROUP, policy=policy, ledger="run", tell=lambda *what: told.append(what)
    )
    try:
        reply = mod(ask(), node(), endless)
    finally:
        over.set()
    assert torch.isfinite(model_in(reply)).all()
    assert len(told) == 1


# ---- the lifetime ledger


def test_secure_noise_needs_a_lifetime_ledger_or_a_word(why):
    assert "begin_ledger" in why(privacy_mod(LAYOUT, GROUP)(ask(), node(), never))
    assert not privacy_mod(LAYOUT, GROUP, seed=1)(ask(), node(), plain).has_error()
    assert not privacy_mod(LAYOUT, METHODS["vanilla"])(
        ask(), node(), plain
    ).has_error()  # nothing to record
    capped = privacy_mod(LAYOUT, METHODS["vanilla"], budget=lambda p: ParticipationFilter(1))
    assert capped(ask(), node(), never).error.code == FAILED


def test_a_budget_holds_over_all_runs_that_a_server_begins(folder):
    mod = privacy_mod(LAYOUT, GROUP, budget=lambda p: ParticipationFilter(3), **in_(folder))
    codes = [mod(ask(), node(run), plain).has_error() for run in range(25)]
    assert codes == [False] * 3 + [True] * 22
    assert [line["run"] for line in lines(folder)] == ["0", "0", "1", "1", "2", "2"]
    assert {line["source"] for line in lines(folder)} == {"secure"}


def test_a_policys_total_holds_over_all_runs(folder):
    policy = Policy(total=Limits(mu=1.0))
    method = build("sga-ldp", similarity="released", epsilon_min=1.0, epsilon_max=1.0)
    mod = privacy_mod(LAYOUT, method, policy=policy, **in_(folder))
    answered = [not mod(ask(), node(run), plain).has_error() for run in range(25)]
    spent = sum(line["spend"]["charge"] ** 2 for line in lines(folder) if line["digest"] != "open")
    assert 0 < sum(answered) < 25
    assert spent <= 1.0 < spent * (sum(answered) + 1) / sum(answered)


def test_a_round_answered_in_a_run_is_not_answered_anew_when_the_node_forgets(folder):
    mod = privacy_mod(LAYOUT, GROUP, budget=lambda p: ParticipationFilter(1), **in_(folder))
    assert not mod(ask(), node(), plain).has_error()
    assert mod(ask(), node(), never).error.code == REFUSED  # another context: what had left is lost


def test_a_process_that_died_in_training_answers_zero(folder):
    def die(message, context):
        os._exit(9)

    mod = privacy_mod(LAYOUT, GROUP, budget=lambda p: ParticipationFilter(1), **in_(folder))
    pid = os.fork()
    if pid == 0:
        mod(ask(), node(), die)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    reply = mod(ask(), node(), never)
    assert torch.isfinite(model_in(reply)).all()
    assert [line["digest"] == "open" for line in lines(folder)] == [True, False]


def test_a_torn_line_is_cut_only_in_this_ledger(folder, tmp_path):
    mod = privacy_mod(LAYOUT, GROUP, **in_(folder))
    mod(ask(), node(), plain)
    path = f"{folder}/2.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"round": 2, "pur')
    assert not mod(ask(round_=2), node(), plain).has_error()
    assert len(lines(folder)) == 4
    for content in (
        b"a letter to nobody, without an end",
        b'{"dataset": "3"}\n{"ro',
        b"",
        b'{"by": "me"}\n{"ro',
    ):
        other = tmp_path / "2.jsonl"
        other.write_bytes(content)
        assert (
            privacy_mod(LAYOUT, GROUP, **in_(tmp_path))(ask(), node(), never).error.code == FAILED
        )
        assert other.read_bytes() == content


def test_an_edited_shortened_or_exchanged_ledger_is_refused(folder):
    mod, context, path = privacy_mod(LAYOUT, GROUP, **in_(folder)), node(), f"{folder}/2.jsonl"
    for r in (1, 2):
        mod(ask(round_=r), context, plain)
    with open(path) as file:
        whole = file.read()
    rows = whole.splitlines(keepends=True)
    for content in (
        "".join(rows[:3]),
        whole.replace('"round": 1', '"round": 9'),
        "".join([*rows[:1], *rows[2:]]),
    ):
        with open(path, "w") as file:
            file.write(content)
        assert mod(ask(round_=3), context, never).error.code == FAILED
    with open(path, "w") as file:
        file.write(whole)
    assert not mod(ask(round_=3), context, plain).has_error()


def test_a_ledger_put_back_to_an_earlier_run_is_refused_before_data_are_touched(folder):
    mod = privacy_mod(LAYOUT, GROUP, budget=lambda p: ParticipationFilter(3), **in_(folder))
    path = f"{folder}/2.jsonl"
    for run in range(3):
        if run == 1:
            with open(path, "rb") as file:
                older = file.read()
        assert not mod(ask(), node(run), plain).has_error()
    with open(path, "rb") as file:
        last = file.read()
    for content in (older, last):
        with open(path, "wb") as file:
            file.write(content)
        assert mod(ask(), node(3), never).error.code == (FAILED if content == older else REFUSED)


def test_a_lifetime_ledger_needs_its_head(folder, why):
    assert "head" in why(privacy_mod(LAYOUT, GROUP, ledger=folder)(ask(), node(), never))
    own = {"privacy.ledger": folder, "privacy.head": f"{folder}-head"}
    assert not privacy_mod(LAYOUT, GROUP)(ask(), node(**own), plain).has_error()
    os.rename(f"{folder}-head/2.head", f"{folder}-head/lost")
    assert privacy_mod(LAYOUT, GROUP)(ask(), node(2, **own), never).error.code == FAILED
    os.rename(f"{folder}-head/lost", f"{folder}-head/2.head")
    assert not privacy_mod(LAYOUT, GROUP)(ask(), node(2, **own), plain).has_error()


def test_a_new_ledger_is_an_operators_act(tmp_path, why):
    assert "begin_ledger" in why(privacy_mod(LAYOUT, GROUP, **in_(tmp_path))(ask(), node(), never))
    assert not list(tmp_path.iterdir())
    path = begin_ledger(tmp_path / "new", 2, by="A. Turing: study 7 begins", head=tmp_path / "head")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    head = json.loads(path.read_text())
    assert head["by"] == "A. Turing: study 7 begins"
    for dataset, by in ((2, "again"), (3, " "), ("../3", "me"), ("", "me")):
        with pytest.raises(FieldError):
            begin_ledger(tmp_path / "new", dataset, by=by, head=tmp_path / "head")


def test_a_data_set_may_have_a_name(tmp_path):
    begin_ledger(tmp_path, "ward-7", by="the tests", head=tmp_path / "head")
    own = {
        "privacy.ledger": str(tmp_path),
        "privacy.head": str(tmp_path / "head"),
        "privacy.dataset": "ward-7",
    }
    reply = privacy_mod(LAYOUT, GROUP)(ask(), node(**own), plain)
    assert reply.content["fedveil.reply"]["partition-id"] == 2
    assert (tmp_path / "ward-7.jsonl").read_text().count("ward-7") == 3


def _hold(folder, held, done):
    with LifetimeLedger(folder, 2, "other", head=f"{folder}-head"):
        held.set()
        done.wait(20)


def test_one_process_at_a_time(folder, monkeypatch):
    monkeypatch.setattr("fedveil.files.locked.PATIENCE", 0.1)
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(folder, held, done))
    other.start()
    try:
        assert held.wait(20)
        with (
            pytest.raises(LedgerError, match="in use"),
            LifetimeLedger(folder, 2, "run", head=f"{folder}-head"),
        ):
            pass
    finally:
        done.set()
        other.join()
    with LifetimeLedger(folder, 2, "run", head=f"{folder}-head") as found:
        assert found.ledger.lines == 0


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (build("fedre", scores="public", epsilon=2.0), 3),
        (build("record", examples=6, clip=1.0, epsilon=2.0, rounds=3), 3),
    ],
)
def test_a_total_that_was_promised_holds_over_all_runs_without_a_policy(folder, method, rounds):
    net = nn.Sequential(nn.Linear(10, 20))
    trainer = method.noisy and PrivateTrainer(
        net, LAYOUT, LocalTraining(), method.noisy.noisy_steps
    )
    mod, spent = privacy_mod(LAYOUT, method, **in_(folder), trainer=trainer), 0
    for run in range(8):
        message = ask()
        message.content["fedveil.public"]["layer_scores"] = [1.0]
        if "layer_scores" not in method.client.needs and method.noisy:
            del message.content["fedveil.public"]["layer_scores"]
        spent += not mod(message, node(run), plain).has_error()
    assert spent == rounds


def test_a_request_cannot_say_how_training_went(folder, why):
    method = build("record", examples=6, clip=1.0, noise_multiplier=1.0)
    message = ask()
    message.content[FACTS] = write_facts(
        noised=method.client.noisy_steps
    )  # as if the model had its noise

    def echoing(message, context):
        message.content["arrays"] = trained(message)["arrays"]
        return Message(message.content, reply_to=message)

    assert FACTS in why(privacy_mod(LAYOUT, method, **in_(folder))(message, node(), echoing))


def test_kinds_stand_side_by_side_in_one_ledger(folder):
    for run, method in enumerate(
        (GROUP, build("group", radius=1.0, hypotheses=1), build("sga-ldp"))
    ):
        assert not privacy_mod(LAYOUT, method, **in_(folder))(ask(), node(run), plain).has_error()
    sharing = Message(RecordDict({**ask().content}), 99, "train")

    def train(message, context):
        reply = plain(message, context)
        reply.content[FACTS] = write_facts(0, {"0": 1.0})
        return reply

    assert not privacy_mod(LAYOUT, build("fedre"), **in_(folder))(
        sharing, node(9), train
    ).has_error()
    with LifetimeLedger(folder, 2, "9", head=f"{folder}-head") as found:
        assert len(found.ledger.entries) == 1
        assert len(found.ledger.all_entries) == 4
