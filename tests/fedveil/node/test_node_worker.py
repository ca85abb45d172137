"""A bundle's own code: what runs is what was hashed, and whatever it does, what leaves is what the mod made of it."""

import logging
import socket
import sys
import zipfile
from importlib import import_module
from io import BytesIO

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedveil.engines.flower.records import FAILED, REFUSED
from fedveil.engines.messages import REPLY
from fedveil.errors import FieldError
from fedveil.node import worker
from fedveil.node.bundle import Bundle, BundleImporter
from fedveil.node.guard import WORDS, answer
from node_kit import (
    GROUP,
    PLAIN,
    SECRET,
    bundle,
    can_isolate,
    context,
    hash_of,
    lines,
    moved,
    request,
    run,
    site,
)

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("runtime")]


@pytest.fixture
def isolating(tmp_path):
    if not can_isolate(tmp_path):
        pytest.skip("this system gives a process no namespaces")


def listed(tmp_path, content, more=""):
    return site(tmp_path / "node", f'apps = ["{hash_of(content)}"]\n{more}')


def asked(policy, content, kind="train", **more):
    return answer(policy, request(kind), more.get("context") or context(), run(), content)


def protected(reply):
    assert set(reply.content) == {"arrays", "metrics", REPLY}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert moved(reply).abs().min() > 1e-6
    assert SECRET not in str(reply.content)


def acted(reply, policy):
    """The code of the bundle ran to its end: the model is near to 42, far from a zero update."""
    protected(reply)
    assert moved(reply).abs().median() < 21
    assert lines(policy) == 2


def zeroed(reply, policy):
    """The code of the bundle failed: the model is a zero update, with noise."""
    protected(reply)
    assert moved(reply).abs().median() > 21
    assert lines(policy) == 2


QUIET = {**GROUP, "privacy.noise-multiplier": 0.01}  # far less noise than the 42 of training


def instead(line, text=PLAIN):
    """The plain client with other lines in its training function."""
    return text.replace(
        "    return raw(message)\n", "".join(f"    {part}\n" for part in line.split("\n")), 1
    )


# one process each: together what is tried apart on the real chain (tests/deploy)
BYPASS = f"""import fedveil.engines.flower.mod as m
m.privacy_mod = m.records.write_reply = None
print('{SECRET}')
context.state['fedveil.ledger'] = MetricRecord({{'x': 1.0}})
reply = raw(message)
reply.content['{SECRET}'] = MetricRecord({{'{SECRET}': 1.0}})
return reply"""


def test_whatever_the_apps_code_patches_away_the_mod_is_outside(tmp_path, isolating):
    content = bundle(instead(BYPASS))
    policy = listed(tmp_path, content)
    given = context(**QUIET)
    acted(asked(policy, content, context=given), policy)
    assert "lines" in given.state["fedveil.ledger"]


slow = pytest.mark.slow


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "line",
    [
        f"raise ValueError('{SECRET}')",
        f"os.execv(sys.executable, [sys.executable, '-c', 'print(\"{SECRET}\")'])",
        pytest.param(f"os.write(1, b'{SECRET}'); os._exit(0)", marks=slow),
        pytest.param("os.kill(os.getpid(), 9)", marks=slow),
        pytest.param(
            "from flwr.app import Error\nreturn Message(Error(0, 'x'), reply_to=message)",
            marks=slow,
        ),
        pytest.param("return Message(RecordDict(), reply_to=message)", marks=slow),
        pytest.param("return 'patient-4711'", marks=slow),
    ],
)
def test_code_that_fails_or_becomes_another_program_is_a_zero_update(tmp_path, isolating, line):
    content = bundle(instead(line))
    policy = listed(tmp_path, content)
    zeroed(asked(policy, content, context=context(**QUIET)), policy)


@slow
def test_code_that_never_ends_is_ended(tmp_path, isolating):
    content = bundle(instead("import time\ntime.sleep(600)"))
    policy = listed(tmp_path, content)
    policy.write_text("deadline = 6\n" + policy.read_text())
    zeroed(asked(policy, content, context=context(**QUIET)), policy)


def test_evaluation_runs_nothing_under_local_trust(tmp_path, isolating):
    content = bundle()
    policy = listed(tmp_path, content)
    reply = asked(policy, content, "evaluate")
    assert set(reply.content) == {"metrics", REPLY}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


def test_isolated_code_has_no_network_and_no_disk(tmp_path, isolating):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = tmp_path / "theirs"
        text = PLAIN.replace(
            "    return raw(message)\n",
            f"""    import socket, tempfile
    done = 0
    try:
        socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), 5)
        done += 1
    except OSError:
        pass
    for path in ({str(ours)!r}, {str(tmp_path / "node" / "policy.toml")!r}, "/tmp/{tmp_path.name}-x"):
        try:
            open(path, "a").write("#")
            done += 1
        except OSError:
            pass
    try:
        open("/proc/%d/mem" % os.getppid(), "rb")
        done += 1
    except OSError:
        pass
    with tempfile.NamedTemporaryFile() as own:
        own.write(b"1")
    return raw(message, 42.0 if done == 0 else -1000.0)
""",
            1,
        )
        content = bundle(text)
        policy = listed(tmp_path, content)
        before = policy.read_text()
        acted(asked(policy, content, context=context(**QUIET)), policy)
    assert not ours.exists()
    assert policy.read_text() == before


@pytest.mark.few(0)
def test_open_code_may_do_what_its_user_may_where_the_policy_says_so(tmp_path):
    ours = tmp_path / "theirs"
    content = bundle(
        PLAIN.replace(
            "    return raw(message)\n",
            f"    open({str(ours)!r}, 'w')\n    return raw(message)\n",
            1,
        )
    )
    policy = listed(tmp_path, content, 'foreign = "open"')
    acted(asked(policy, content, context=context(**QUIET)), policy)
    assert ours.exists()


def test_where_nothing_can_be_isolated_no_code_of_a_bundle_runs(tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    content = bundle(f"open({str(mark)!r}, 'w')\n{PLAIN}")
    policy = listed(tmp_path, content)
    monkeypatch.setattr(
        worker, "require_isolation", lambda folder: (_ for _ in ()).throw(FieldError("x", 1, "no"))
    )
    reply = asked(policy, content)
    assert (reply.error.code, reply.error.reason) == (FAILED, WORDS[FAILED])
    assert lines(policy) == 0
    assert not mark.exists()


def test_what_runs_is_what_was_hashed(tmp_path, isolating, monkeypatch):
    # Flower loads whatever lies below FLWR_HOME under the first digits of the hash; a bundle may change, too
    content = bundle()
    planted = tmp_path / "home" / "apps" / f"tests.study.1.{hash_of(content)[:8]}"
    planted.mkdir(parents=True)
    (planted / "its_client.py").write_text("raise SystemExit")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    policy = listed(tmp_path, content)
    acted(asked(policy, content, context=context(**QUIET)), policy)
    reply = asked(policy, bundle(PLAIN + "\n"))
    assert (reply.error.code, reply.error.reason) == (REFUSED, WORDS[REFUSED])
    assert lines(policy) == 2


@pytest.mark.parametrize("loop", ["trainer", "app"])
def test_noise_inside_training_is_not_left_to_a_bundles_code(tmp_path, isolating, caplog, loop):
    content = bundle()
    policy = listed(tmp_path, content)
    own = {
        "privacy.method": "record",
        "privacy.noise-multiplier": 1.0,
        "privacy.clip": 1.0,
        "privacy.rate": 0.1,
        "privacy.examples": 50,
        "privacy.loop": loop,
    }
    caplog.set_level(logging.ERROR, "flwr")
    reply = asked(policy, content, context=context(**own))
    assert (reply.error.code, reply.error.reason) == (FAILED, WORDS[FAILED])
    assert lines(policy) == 0
    assert "policy.node.client" in caplog.text


@slow
def test_an_apps_own_state_is_kept_from_round_to_round(tmp_path, isolating):
    text = instead(
        "seen = dict(context.state.metric_records.get('mine', {'n': 0}))['n'] + 1\n"
        "context.state['mine'] = MetricRecord({'n': seen})\n"
        "return raw(message, 42.0 if seen == 1 else 4200.0)"
    )
    content = bundle(text)
    policy, state = listed(tmp_path, content), RecordDict({"old": ConfigRecord({"x": 1})})
    given = context(state=state, **QUIET)
    acted(asked(policy, content, context=given), policy)
    again = answer(policy, request(round_=2), given, run(), content)
    assert (moved(again) + 42 - 4200).abs().median() < 2100


# ---- the archive and its importer


def test_an_archive_leads_nowhere_else():
    for name in ("/etc/x.py", "../x.py", "a/../../x.py"):
        with pytest.raises(FieldError):
            Bundle(bundle(**{name: "x"})).files()
    for content in (b"", b"PK", bundle()[:-40]):
        with pytest.raises(FieldError):
            Bundle(content).files()
        with pytest.raises(FieldError):
            _ = Bundle(content).project


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch):
    held = BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", bytes(1 << 20))
    monkeypatch.setattr("fedveil.node.bundle.LARGEST", 1 << 19)
    with pytest.raises(FieldError, match="unpacks"):
        Bundle(held.getvalue()).files()


def test_modules_come_from_memory_and_data_lie_beside_them(tmp_path, monkeypatch):
    files = {
        "pack/__init__.py": b"from pack.inner import value",
        "pack/inner.py": b"from pathlib import Path\nvalue = (Path(__file__).parent / 'data.txt').read_text()",
        "pack/data.txt": b"held",
        "spaces/deep/leaf.py": b"value = 3",
    }
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    known = dict(sys.modules)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "inner.py").write_text("value = 'planted'")
    BundleImporter(files, tmp_path).install()
    try:
        assert import_module("pack").value == "held"
        assert import_module("spaces.deep.leaf").value == 3
    finally:
        for name in set(sys.modules) - set(known):
            del sys.modules[name]
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["data.txt", "inner.py"]
    assert BundleImporter({}, tmp_path).find_spec("json") is None
