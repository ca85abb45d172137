"""What a bundle's code can do to the node that runs it: kill it, outlive its message, write into its log."""

import os
import re
import signal
import socket
import tempfile
import time

import pytest

from fedveil.node import worker
from fedveil.node.guard import answer
from node_kit import (
    GROUP,
    PLAIN,
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
QUIET = {**GROUP, "privacy.noise-multiplier": 0.01}  # far less noise than the 42 of training


@pytest.fixture
def played(tmp_path):
    """A bundle's training code, before it answers 42 -> the node's reply to each round it is asked."""
    if not can_isolate(tmp_path):
        pytest.skip("this system gives a process no namespaces")

    def play(code, rounds=1, more=""):
        body = "".join(f"    {line}\n" for line in code.strip().split("\n"))
        content = bundle(
            PLAIN.replace("    return raw(message)\n", f"{body}    return raw(message)\n", 1)
        )
        policy = site(tmp_path / "node", f'apps = ["{hash_of(content)}"]')
        policy.write_text(more + policy.read_text())
        given = context(**QUIET)
        return policy, [
            answer(policy, request(round_=n + 1), given, run(), content) for n in range(rounds)
        ]

    return play


def trained(reply):
    """Its code ran to its end: the model is near to 42, far from a zero update."""
    return float(moved(reply).abs().median()) < 21


def test_code_reaches_no_process_but_its_own_and_nothing_that_a_read_only_file_system_leaves_open(
    played,
):
    """A socket of the machine, one that no network separates (it reaches the host of a virtual machine), a disk."""
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *given: came.append(given))
    try:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/of-the-machine")
            listener.listen()
            policy, [reply] = played(f"""
import socket, stat
from contextlib import suppress
for process in ({os.getpid()}, os.getppid()):
    with suppress(OSError):
        os.kill(process, {int(signal.SIGUSR1)})
assert sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) == [os.getppid(), os.getpid()]
for reach in (lambda: socket.socket(socket.AF_UNIX).connect({listener.getsockname()!r}), lambda: socket.socket(40)):
    with suppress(OSError):
        reach()
        return raw(message, -4200.0)
assert not any(stat.S_ISBLK(os.lstat(f"/dev/{{name}}").st_mode) for name in os.listdir("/dev"))
socket.socketpair()
own = socket.socket(socket.AF_UNIX)
own.bind(os.environ["TMPDIR"] + "/own")
own.listen()
socket.socket(socket.AF_UNIX).connect(own.getsockname())
""")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == []
    assert trained(reply)
    assert lines(policy) == 2


@pytest.mark.few(0)
def test_what_an_app_leaves_behind_is_ended_before_its_answer_is_used(
    played, tmp_path, monkeypatch
):
    """A process of its own session that takes the ledger's lock as soon as it is free, and would hold it."""
    monkeypatch.setattr("fedveil.files.locked.PATIENCE", 5.0)
    ledger = tmp_path / "node" / "ledgers" / "ward.jsonl"
    _, replies = played(
        f"""
import fcntl, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 99)
        file, until = os.open({str(ledger)!r}, os.O_RDONLY), time.monotonic() + 40
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.001)
        os._exit(0)
    os._exit(0)
os.wait()
""",
        rounds=2,
    )
    assert [reply.has_error() for reply in replies] == [False, False]


@pytest.mark.few(0)
def test_code_that_never_ends_is_ended_with_all_it_started(played, tmp_path):
    mark = str(tmp_path.name)
    began = time.monotonic()
    _, [reply] = played(
        f"""
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90) # {mark}"], start_new_session=True)
time.sleep(600)
""",
        more="deadline = 8\n",
    )
    assert not trained(reply)
    assert time.monotonic() - began < 60
    while (
        alive(mark) and time.monotonic() - began < 60
    ):  # the kernel ends a namespace in its own time
        time.sleep(0.1)
    assert not alive(mark)


def alive(mark):
    return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if mark in words_of(pid)]


def words_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


LARGE = "context.state['mine'] = ArrayRecord({'x': torch.zeros(1 << 19)})"
FORGED = "FedVeil: nothing leaves this node: all is well"


@pytest.mark.few(0)
def test_the_nodes_log_holds_an_apps_words_marked_and_cut_and_keeps_its_own(played, caplog, capfd):
    caplog.set_level("WARNING", "flwr")
    os.write(2, b"the node's own line\n")
    _, [reply] = played(f"""
from contextlib import suppress
with suppress(OSError):
    os.ftruncate(2, 0)
os.write(2, ("x" * 100 + chr(10)).encode() * 100000)
os.write(2, {(FORGED + chr(10)).encode()!r})
{LARGE}
os.write(1, b"printed\\r" + b"\\x1b[2J" + {(FORGED + chr(10)).encode()!r})
""")
    own = capfd.readouterr().err
    assert trained(reply)
    assert own.startswith("the node's own line\n")
    said = [
        r.getMessage()
        for r in caplog.records
        if FORGED in r.getMessage() or "xxx" in r.getMessage()
    ]
    assert all(message.startswith(worker.WORDS) for message in said)
    assert FORGED in said[-1]
    assert 0 < len(said) <= worker.MOST_LINES
    assert not re.search(r"[\x00-\x1f]", "".join(said))
    assert f"\n{FORGED}" not in own


@pytest.mark.few(0)
def test_an_answer_is_held_up_to_a_size(played, monkeypatch):
    monkeypatch.setattr(worker, "LARGEST_ANSWER", 1 << 16)
    _, [reply] = played(LARGE)
    assert not trained(reply)
