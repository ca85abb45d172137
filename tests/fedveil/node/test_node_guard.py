"""What a node answers: what the mod made of the operator's own client, or a constant word and nothing in the ledger."""

import errno
import json
import logging
import os
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedveil.engines.flower import mod as mods
from fedveil.engines.flower.records import FAILED, HELLO, REFUSED
from fedveil.engines.lifetime import LifetimeLedger
from fedveil.engines.messages import REPLY
from fedveil.errors import FieldError
from fedveil.flower import privacy_mod
from fedveil.node import guard
from fedveil.node.bundle import APPROVAL, approve, make_signer
from fedveil.node.guard import DECISIONS, WORDS, NodePolicy, answer, own_client
from node_kit import (
    GROUP,
    HEAD,
    LAYOUT,
    PLAIN,
    SECRET,
    bundle,
    context,
    hash_of,
    lines,
    moved,
    request,
    run,
    site,
)

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("runtime")]
OWN = 'client = "own_client:app"'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The operator's own client: its text -> a policy that names it."""

    def write(text=PLAIN, admission=OWN, **more):
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "own_client.py").write_text(HEAD + text)
        monkeypatch.syspath_prepend(str(tmp_path / "code"))
        monkeypatch.delitem(sys.modules, "own_client", raising=False)
        return site(tmp_path / "node", admission, **more)

    return write


def asked(policy, message=None, content=None, **more):
    given = {"context": context(), "run": run(), **more}
    return answer(policy, message or request(), given["context"], given["run"], content or bundle())


def refused(reply, policy=None, code=REFUSED):
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (code, WORDS[code])
    if policy is not None:
        assert lines(policy) == 0


# ---- the operator's own client


def test_an_own_client_without_a_mod_is_protected_and_recorded(own):
    policy = own()
    reply = asked(policy)
    assert set(reply.content) == {"arrays", "metrics", REPLY}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert moved(reply).abs().min() > 1e-6
    assert lines(policy) == 2  # an intent, and the release


def test_an_own_clients_mod_says_how_and_the_noise_is_added_once(own, monkeypatch):
    text = PLAIN.replace(
        "app = ClientApp()",
        "from fedveil.flower import privacy_mod\nfrom fedveil.layout import Layout\nfrom fedveil.methods import build\n"
        "L = Layout.from_shapes({'weight': (3, 2), 'bias': (3,)})\n"
        "app = ClientApp(mods=[privacy_mod(L, build('group', noise_multiplier=0.01), ledger='x', head='y')])",
    )
    policy = own(text)
    made = []
    monkeypatch.setattr(
        mods.records,
        "write_reply",
        lambda *a, _w=mods.records.write_reply: made.append(a) or _w(*a),
    )
    reply = asked(policy, context=context(**{"num-partitions": 3}))
    assert not reply.has_error()
    assert len(made) == 1
    assert (
        moved(reply).abs().median() < 21
    )  # trained, and not what a second mod without a ledger would make of it
    assert lines(policy) == 2


def decisions(policy):
    file = policy.parent / DECISIONS
    assert file.stat().st_mode & 0o777 == 0o600
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_message_leaves_a_decision_for_the_operator(own):
    policy = own()
    assert not asked(policy).has_error()
    [found] = decisions(policy)
    assert (found["verdict"], found["message"], found["round"], found["trust"]) == (
        "allowed",
        "train",
        1,
        "local",
    )
    assert (found["app"], found["run"]) == (hash_of(bundle()), str(run().run_id))
    assert found["rules"]
    for rule in found["rules"]:
        cost = found["costs"][rule.removeprefix("total.")]
        assert 0 < cost["spent"] <= cost["limit"]
        assert cost["releases"] == 1


@pytest.mark.parametrize(
    ("admission", "limits", "rule"),
    [
        (f'{OWN}\napps = ["{"0" * 64}"]', {}, "node.apps"),
        (f'{OWN}\naccounts = ["nobody"]', {}, "node.accounts"),
        (OWN, {"total": "mu = 1.0"}, "total"),
        (OWN, {"top": 'methods = ["record"]'}, "methods"),
        (OWN, {"top": 'trust = ["central"]'}, "trust"),
    ],
)
def test_a_refusal_names_its_rule_to_the_operator_alone(own, admission, limits, rule):
    policy = own(admission=admission, **limits)
    refused(asked(policy), policy)
    [found] = decisions(policy)
    assert (found["verdict"], found["rule"]) == ("refused", rule)
    assert found["why"]


def test_a_limit_that_is_reached_is_named_with_its_scope(own):
    policy, state = own(total="participations = 1"), RecordDict()
    assert not asked(policy, context=context(state=state)).has_error()
    refused(asked(policy, request(round_=2), context=context(state=state)))
    assert [line["verdict"] for line in decisions(policy)] == ["allowed", "refused"]
    assert decisions(policy)[1]["rule"] == "total.participations"


def test_what_failed_is_in_the_decisions_and_what_is_not_recorded_does_not_leave(own, monkeypatch):
    policy = own()
    (policy.parent / "ledgers" / "ward.jsonl").unlink()
    refused(asked(policy), code=FAILED)
    [found] = decisions(policy)
    assert (found["verdict"], found["rule"]) == ("failed", "")
    assert "ledger" in found["why"]


def test_no_decision_no_answer(own, monkeypatch):
    policy = own()

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(guard, "append", full)
    refused(asked(policy), code=FAILED)


def test_no_code_of_the_bundle_runs_beside_an_own_client(own, tmp_path):
    mark = tmp_path / "ran"
    policy = own()
    assert not asked(policy, content=bundle(f"open({str(mark)!r}, 'w')\n{PLAIN}")).has_error()
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.unlink(),
        lambda p: p.write_text("trust = 3"),
        lambda p: p.write_text("no toml"),
        lambda p: p.write_text("[total]\nparticipations = 2"),
        lambda p: p.write_text("[node]\nclients = 'a:b'"),
        lambda p: p.chmod(0o622),
        lambda p: p.parent.chmod(0o777),
        lambda p: (p.parent / "ledgers" / "ward.jsonl").unlink(),
        lambda p: (p.parent.with_name("node-head") / "ward.key").unlink(),
        lambda p: (p.parent.with_name("node-head") / "ward.key").chmod(0o644),
        lambda p: (p.parent.with_name("node-head") / "ward.head").unlink(),
    ],
)
def test_a_policy_a_ledger_or_a_key_that_is_missing_or_open_lets_nothing_out(own, change, caplog):
    policy = own()
    change(policy)
    caplog.set_level(logging.ERROR, "flwr")
    refused(asked(policy), code=FAILED)
    assert caplog.text.strip()


def test_a_full_disk_lets_nothing_out(own, monkeypatch):
    policy = own()

    def full(handle, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedveil.files.locked.os.write", full)
    refused(asked(policy), policy, FAILED)


def test_a_disk_that_cannot_be_written_lets_nothing_out(own, monkeypatch):
    policy = own()
    opening = os.open

    def refusing(path, flags, *mode):
        if str(path).endswith("ward.jsonl") and flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opening(path, flags, *mode)

    monkeypatch.setattr("fedveil.files.locked.os.open", refusing)
    refused(asked(policy), policy, FAILED)


def test_two_jobs_at_once_wait_and_then_say_so(own, monkeypatch, tmp_path, caplog):
    policy = own()
    folder = policy.parent / "ledgers"
    with LifetimeLedger(folder, "ward", "other", head=policy.parent.with_name("node-head")):
        monkeypatch.setattr("fedveil.files.locked.PATIENCE", 0.1)
        refused(asked(policy), policy, FAILED)
    assert not asked(policy).has_error()


def test_a_clock_that_was_put_back_lets_nothing_out(own):
    policy = own()
    later = time.time() + 86400
    os.utime(policy.parent / "ledgers" / "ward.jsonl", (later, later))
    refused(asked(policy), policy)


@pytest.mark.parametrize(
    ("admission", "given", "ok"),
    [
        ('accounts = ["roe"]', {}, True),
        ('accounts = ["doe"]', {}, False),
        ('federations = ["@here/study"]', {}, True),
        ('federations = ["@here/other"]', {}, False),
        ("federations = []", {}, False),
        ('runs = ["1"]', {}, True),
        ('runs = ["2"]', {}, False),
        ('projects = ["tests/study"]', {}, True),
        ('projects = ["tests/studies"]', {}, False),
        ("apps = []", {}, False),
    ],
)
def test_runs_projects_federations_and_accounts_are_listed(own, admission, given, ok):
    policy = own(admission=f"{OWN}\n{admission}")
    reply = asked(policy, **given)
    if ok:
        assert not reply.has_error()
    else:
        refused(reply, policy)


@pytest.mark.parametrize("kind", ["query", "query.more", "system"])
def test_other_kinds_of_message_are_refused_whatever_the_trust(own, kind):
    policy = own(top='trust = ["central", "local"]')
    message = request()
    message.metadata.__dict__["_message_type"] = kind
    refused(asked(policy, message, context=context(**{"privacy.method": "vanilla"})), policy)


def test_evaluation_tells_nothing_under_local_trust(own):
    policy = own()
    reply = asked(policy, request("evaluate"))
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert "arrays" not in reply.content


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "proposed",
    [{"privacy.method": "vanilla"}, {"privacy.method": "global"}, {**GROUP, "privacy.ledger": "run"},
     {**GROUP, "privacy.seed": 1}, {**GROUP, "privacy.policy": "mine.toml"}, {**GROUP, "privacy.dataset": "fresh"}],
)  # fmt: skip
def test_a_runs_configuration_weakens_nothing(own, kind, proposed):
    policy = own()
    reply = asked(policy, request(kind), context=context(proposed, **{"privacy.rounds": 5}))
    assert reply.has_error()
    assert reply.error.reason in WORDS.values()
    assert lines(policy) == 0


VALIDATING = PLAIN.replace(
    "app = ClientApp()",
    "from fedveil.flower import privacy_mod\nfrom fedveil.layout import Layout\n"
    "from fedveil.methods import Validation\n"
    "app = ClientApp(mods=[privacy_mod(Layout.from_shapes({'weight': (3, 2), 'bias': (3,)}),\n"
    "    validation=Validation(losses='LOSSES', noise_multiplier=2.0, loss_range=50.0))])",
)


def test_a_node_that_only_validates_pays_for_each_loss_and_never_trains(own):
    """mu = 1/2 for each loss, so that .75 holds two: sqrt(2)/2 = .71, sqrt(3)/2 = .87."""
    policy = own(VALIDATING.replace("LOSSES", "noised"), total="mu = 0.75")

    def asked(policy, message):
        sys.modules.pop("own_client", None)  # each message has a process of its own
        return answer(policy, message, context(), run(), bundle())

    refused(asked(policy, request()), policy)
    for number in (1, 2):
        reply = asked(policy, request("evaluate", number))
        assert set(reply.content) == {"metrics", REPLY}
        assert set(reply.content["metrics"]) == {"loss", "num-examples"}
        assert reply.content["metrics"]["loss"] != 42
        assert lines(policy) == number
    for number in (3, 2):  # a loss that was released once would be drawn, and paid, anew
        refused(asked(policy, request("evaluate", number)))
    assert lines(policy) == 2


def test_a_node_that_validates_sends_no_loss_in_the_clear(own):
    policy = own(VALIDATING.replace("LOSSES", "public"), total="mu = 0.75\nparticipations = 9")
    refused(asked(policy, request("evaluate")), policy)


def test_without_a_node_evaluation_in_the_clear_needs_the_policys_word_too():
    from fedveil.accounting import Limits, Policy

    policy = Policy(total=Limits(participations=3))  # local trust alone
    told = []

    def measure(message, context):
        told.append(message)
        return message

    for kind in ("evaluate", "query"):
        given = context({"privacy.method": "vanilla"}, **{"privacy.ledger": "run"})
        assert privacy_mod(LAYOUT, policy=policy)(request(kind), given, measure).has_error()
    assert not told


def test_text_of_an_exception_stays_on_the_node(own, caplog):
    caplog.set_level(logging.ERROR, "flwr")
    policy = own(
        PLAIN.replace("    return raw(message)\n", f"    raise ValueError({SECRET!r})\n", 1)
    )
    reply = asked(policy)
    assert SECRET not in str(reply.content)
    assert SECRET in caplog.text
    assert lines(policy) == 2  # a zero update, with the noise of any other
    assert float((moved(reply) + 42).abs().max()) > 0


def test_a_client_that_cannot_be_loaded_is_one_that_failed(own, caplog):
    caplog.set_level(logging.ERROR, "flwr")
    policy = own(f"raise RuntimeError({SECRET!r})\n")
    refused(asked(policy), policy, FAILED)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("fedveil.public"),
        lambda content: content["fedveil.public"].update({"newer": 1}),
        lambda content: content["fedveil.public"].update({"dimension": 3}),
        lambda content: content.pop("arrays"),
        lambda content: content.update({"fedveil.facts": ConfigRecord({"chosen": 0})}),
    ],
)
def test_a_server_of_another_version_gets_a_constant_word(own, change):
    policy = own()
    message = request()
    change(message.content)
    refused(asked(policy, message), policy, FAILED)


def test_the_greeting_is_answered_without_running_anything(own):
    from flwr.app import Message

    policy = own()
    reply = asked(policy, Message(RecordDict({HELLO: ConfigRecord()}), 1, "train"))
    assert set(reply.content) == {REPLY}
    refused(
        asked(
            policy, Message(RecordDict({HELLO: ConfigRecord()}), 1, "train"), content=b"no bundle"
        ),
        code=FAILED,
    )


def test_a_ledger_of_the_run_alone_is_no_nodes(own, tmp_path):
    text = PLAIN.replace(
        "app = ClientApp()",
        "from fedveil.flower import privacy_mod\nfrom fedveil.layout import Layout\n"
        "app = ClientApp(mods=[privacy_mod(Layout.from_shapes({'weight': (3, 2), 'bias': (3,)}), ledger='run')])",
    )
    policy = own(text)
    policy.write_text(f"[total]\nparticipations = 9\n[node]\n{OWN}\n")
    refused(asked(policy), policy, FAILED)


def test_what_leaves_is_counted_over_runs(own):
    policy = own(total="participations = 2")
    assert not asked(policy).has_error()
    for number in (2, 3):
        given = context()
        given.run_id = number
        reply = asked(policy, context=given, run=run(number=number))
        assert reply.has_error() == (number == 3)


# ---- approvals


def test_a_signed_bundle_runs_until_its_day_is_over(own, tmp_path, monkeypatch):
    content, key = bundle(), tmp_path / "signer"
    public, today = make_signer(key), datetime.now(UTC).date()
    assert key.stat().st_mode & 0o777 == 0o600
    policy = own(admission=f'{OWN}\nsigners = ["{public}"]')
    good = approve(key, hash_of(content), today)
    refused(asked(policy, content=content), policy)
    later = good.replace(today.isoformat(), (today + timedelta(days=1)).isoformat())
    other = make_signer(tmp_path / "another")
    assert other != public
    bad = [later, "", "x", good[:-2], approve(tmp_path / "another", hash_of(content), today), 3]
    for approval in bad:
        refused(asked(policy, content=content, context=context({APPROVAL: approval})), policy)
    refused(
        asked(policy, content=bundle(name="changed"), context=context({APPROVAL: good})), policy
    )
    assert not asked(policy, content=content, context=context({APPROVAL: good})).has_error()


def test_an_approval_ends(tmp_path):
    from fedveil.node.bundle import approved

    key = tmp_path / "signer"
    public, today = make_signer(key), datetime.now(UTC).date()
    line = approve(key, "ab" * 32, today)
    noon = datetime.now(UTC).replace(hour=12)
    assert approved([public], "ab" * 32, line, noon)
    assert not approved([public], "ab" * 32, line, noon + timedelta(days=1))
    assert not approved([], "ab" * 32, line, noon)
    with pytest.raises(FieldError):
        approve(key, "ab" * 32, today - timedelta(days=1))


# ---- the policy's file


@pytest.mark.parametrize(
    "table",
    ["apps = 'ab'", "apps = ['ab']", "apps = [3]", "signers = ['zz']", "runs = [3]", "runs = ['x']", "client = 3",
     "client = 'module'", "client = ':app'", "foreign = 'trusted'", "foreign = true", "ledger = 3", "dataset = ''",
     "accounts = { roe = true }", "app = []"],
)  # fmt: skip
def test_the_table_means_what_it_says_or_is_refused(tmp_path, table):
    path = tmp_path / "policy.toml"
    path.write_text(f"[node]\n{table}\n")
    with pytest.raises(FieldError, match=r"policy\.node"):
        NodePolicy.read(path)


def test_a_policy_for_a_node_is_refused_elsewhere(own, why):
    policy = own()
    given = context(**GROUP, **{"privacy.policy": str(policy)})
    assert "fedveil node" in why(
        privacy_mod(LAYOUT, ledger="run")(request(), given, lambda m, c: m)
    )


def test_an_own_client_whose_handlers_have_different_mods_is_refused(tmp_path, monkeypatch):
    """The first one's method, noise of .0001, protected all of them."""
    (tmp_path / "two_mods.py").write_text(
        "from flwr.clientapp import ClientApp\n"
        "from fedveil.flower import privacy_mod\n"
        "from fedveil.layout import Layout\n"
        "from fedveil.methods import build\n"
        "layout, app = Layout.from_shapes({'w': (3,)}), ClientApp()\n"
        "@app.train('warmup', mods=[privacy_mod(layout, build('group', noise_multiplier=0.0001))])\n"
        "def warm(message, context): return message\n"
        "@app.train(mods=[privacy_mod(layout, build('group', noise_multiplier=5.0))])\n"
        "def train(message, context): return message\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FieldError, match="differ"):
        own_client("two_mods:app")


def test_a_bundle_that_pins_its_method_in_code_is_told_where_to_write_it(tmp_path, caplog):
    content = bundle()
    policy = site(tmp_path / "node", f"apps = [{hash_of(content)!r}]")
    caplog.set_level(logging.ERROR, "flwr")
    refused(
        asked(policy, content=content, context=context(**{"num-partitions": 3})), policy, FAILED
    )
    assert "--node-config" in caplog.text
