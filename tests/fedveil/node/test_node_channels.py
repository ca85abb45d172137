"""What reaches from a bundle's isolated code to the rest of its machine: tried, as one bundle, by a real worker."""

import os
import textwrap
from pathlib import Path
from threading import Thread

import pytest

from fedveil.errors import FieldError
from fedveil.node.guard import answer
from fedveil.node.isolation import require_hidden
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

# `tried(name, f)` prints the name where f does not fail; f stands for what has to fail
TRYING = """
import ctypes, fcntl, resource, struct
libc = ctypes.CDLL(None, use_errno=True)

def call_of(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def call(*given):
    call_of(libc.syscall(*given))

def tried(name, attempt):
    try:
        attempt()
    except (OSError, ValueError):
        return
    print("open:", name)
"""


@pytest.fixture
def attempts(tmp_path, caplog):
    """Training code with attempts -> the names of those that did not fail, and the node's reply."""
    if not can_isolate(tmp_path):
        pytest.skip("this system gives a process no namespaces")
    caplog.set_level("WARNING", "flwr")

    def play(code, config=None, **files):
        body = textwrap.indent(code.strip(), "    ")
        text = TRYING + PLAIN.replace(
            "    return raw(message)\n", f"{body}\n    return raw(message)\n", 1
        )
        content = bundle(text, **files)
        policy = site(tmp_path / "node", f'apps = ["{hash_of(content)}"]')
        reply = answer(policy, request(), context(**QUIET, **(config or {})), run(), content)
        said = [record.getMessage().rpartition("open: ") for record in caplog.records]
        return [name for _, found, name in said if found], reply, policy

    return play


def trained(reply):
    """Its code ran to its end: the model is near to 42, far from a zero update."""
    return not reply.has_error() and float(moved(reply).abs().median()) < 21


@pytest.fixture
def ward_b(tmp_path):
    """The ledger, head and key of another data set, which the first node's policy does not name."""
    policy = site(tmp_path / "other", 'apps = ["' + "a" * 64 + '"]')
    head = tmp_path / "other-head"
    return policy, [
        policy.parent / "ledgers" / "ward.jsonl",
        head / "ward.head",
        head / "ward.key",
        policy,
    ]


# numbers of calls that C libraries have no name for
NUMBERS = {
    "x86_64": {
        "fcntl": 72,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "io_setup": 206,
        "bpf": 321,
    }
    | {"perf_event_open": 298, "ioprio_set": 251, "sched_setattr": 314, "clone": 56},
    "aarch64": {
        "fcntl": 25,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "io_setup": 0,
        "bpf": 280,
    }
    | {"perf_event_open": 241, "ioprio_set": 30, "sched_setattr": 274, "clone": 220},
}
N = NUMBERS.get(os.uname().machine, {}) | {"io_uring_setup": 425, "clone3": 435}


@pytest.mark.few(0)
def test_code_locks_no_file_of_another_data_set(attempts, ward_b):
    """Its own node's files are not there; those of a node beside it can be read, and not locked."""
    _, files = ward_b
    opened, reply, policy = attempts(f"""
import struct
for name in {[str(file) for file in files]!r}:
    file = os.open(name, os.O_RDONLY)
    folder = os.open(os.path.dirname(name), os.O_RDONLY)
    tried(f"flock {{name}}", lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
    tried(f"shared flock {{name}}", lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB))
    tried(f"lockf {{name}}", lambda: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB))
    lock = ctypes.create_string_buffer(struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 0, 0))
    for kind in (5, 6, 7, 36, 37, 38):  # F_GETLK and F_SETLK, F_SETLKW, F_OFD_*
        for high in (0, 1 << 32):  # the kernel looks at 32 bits
            tried(f"fcntl {{kind}}, {{high}}", lambda: call({N["fcntl"]}, file, ctypes.c_long(kind + high), lock))
    tried("lease", lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    tried("asked for a lease", lambda: fcntl.fcntl(file, fcntl.F_GETLEASE))
    tried("notify", lambda: fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS))
    tried("owner", lambda: fcntl.fcntl(file, fcntl.F_SETOWN, os.getpid()))
    tried("signal", lambda: fcntl.fcntl(file, 10, 0))  # F_SETSIG
""")
    assert opened == []
    assert trained(reply)
    assert lines(policy) == 2


@pytest.mark.few(0)
def test_a_data_set_answers_while_code_of_another_tries_to_hold_its_files(
    attempts, ward_b, tmp_path
):
    """What it would gain: whether the other answers is one bit that no ledger charges."""
    policy_b, files = ward_b
    content = bundle()
    policy_b.write_text(policy_b.read_text().replace("a" * 64, hash_of(content)))
    fifo, over = tmp_path / "goes-on", tmp_path / "over"
    os.mkfifo(fifo)
    answered = []

    def ask_b():
        with open(fifo):  # until the first node's code has tried
            answered.append(answer(policy_b, request(), context(**QUIET), run(), content))
        over.touch()

    asking = Thread(target=ask_b)
    asking.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedveil.files.locked.PATIENCE", 2.0)
        attempts(f"""
import time
held = []
for name in {[str(file) for file in files]!r}:
    held.append(os.open(name, os.O_RDONLY))
    tried("flock", lambda: fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB))
    tried("lockf", lambda: fcntl.lockf(held[-1], fcntl.LOCK_SH | fcntl.LOCK_NB))
open({str(fifo)!r}, "w").close()
while not os.path.exists({str(over)!r}):
    time.sleep(0.01)
""")
        asking.join()
    assert not answered[0].has_error()
    assert lines(policy_b) == 2


def test_folders_of_ledger_head_key_and_policy_are_empty_for_code(attempts, tmp_path):
    """Those of the policy, and those that the node's configuration names beside it."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "study.key").write_text("x")
    folders = [tmp_path / "node", tmp_path / "node" / "ledgers", tmp_path / "node-head", keys]
    opened, reply, policy = attempts(
        f"""
for folder in {[str(folder) for folder in folders]!r}:
    if os.path.isdir(folder) and os.listdir(folder):
        print("open:", folder, os.listdir(folder))
    tried(folder, lambda: open(folder + "/own", "w"))
    tried(folder + " unmounted", lambda: call_of(libc.umount2(folder.encode(), 2)))
""",
        {"privacy.key": str(keys / "study.key")},
    )
    assert opened == []
    assert trained(reply)
    assert lines(policy) == 2


@pytest.mark.few(0)
def test_code_reaches_nothing_that_the_system_keeps_for_a_user_or_for_all(attempts):
    """Keys, watches, tables of limited length, priorities, new namespaces, the kernel's own counters and messages."""
    opened, reply, _ = attempts(f"""
import socket
N = {N!r}
for name, kind in (("user", -4), ("session", -3), ("process", -2)):
    tried(f"add_key {{name}}", lambda: call(N["add_key"], b"user", b"held", b"1", 1, kind))
    tried(f"keyctl {{name}}", lambda: call(N["keyctl"], 0, kind, 1))
tried("request_key", lambda: call(N["request_key"], b"user", b"held", None, -4))
for name in ("inotify_init1", "epoll_create1", "sync", "syncfs", "unshare"):
    tried(name, lambda: call_of(getattr(libc, name)(0)))
tried("inotify_init", lambda: call_of(libc.inotify_init()))
tried("epoll_create", lambda: call_of(libc.epoll_create(1)))
tried("fanotify_init", lambda: call_of(libc.fanotify_init(0x200, 0)))
tried("own fanotify", lambda: call_of(libc.fanotify_init(0, 0)))
number = ctypes.c_ulong(0)
tried("io_setup", lambda: call(N["io_setup"], 1, ctypes.byref(number)))
tried("io_uring_setup", lambda: call(N["io_uring_setup"], 1, ctypes.create_string_buffer(120)))
tried("mq_open", lambda: call_of(ctypes.CDLL("librt.so.1").mq_open(b"/q", os.O_CREAT | os.O_RDWR, 0o600, None)))
tried("bpf", lambda: call(N["bpf"], 0, ctypes.create_string_buffer(b"\1" + bytes(127)), 128))
event = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0) + bytes(24) + struct.pack("Q", 0x60) + bytes(80))
tried("perf_event_open", lambda: call(N["perf_event_open"], event, 0, -1, -1, 0))
tried("syslog", lambda: call_of(libc.klogctl(3, ctypes.create_string_buffer(64), 64)))
tried("nice", lambda: os.nice(1))
tried("setpriority", lambda: os.setpriority(os.PRIO_USER, 0, 19))
tried("ioprio_set", lambda: call(N["ioprio_set"], 1, 0, 3 << 13))
tried("sched", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
tried("sched_param", lambda: os.sched_setparam(0, os.sched_param(0)))
batch = ctypes.create_string_buffer(struct.pack("IIQ", 48, 3, 0), 48)
tried("sched_attr", lambda: call(N["sched_setattr"], 0, batch, 0))
tried("new user", lambda: call_of(libc.unshare(0x10000000)))
for flag in (0x02000000, 0x10000000):
    def fork(flag=flag):
        child = libc.syscall(N["clone"], flag | 17, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        call_of(child)
        os.waitpid(child, 0)
    tried(f"clone {{flag:#x}}", fork)
    def fork3(flag=flag):
        own = ctypes.create_string_buffer(struct.pack("8Q", flag, 0, 0, 0, 17, 0, 0, 0), 64)
        child = libc.syscall(N["clone3"], own, 64)
        if child == 0:
            os._exit(0)
        call_of(child)
        os.waitpid(child, 0)
    tried(f"clone3 {{flag:#x}}", fork3)
tried("setns", lambda: call_of(libc.setns(os.open("/proc/self/ns/user", os.O_RDONLY), 0)))
tried("memory lock", lambda: call_of(libc.mlock(ctypes.create_string_buffer(4096), 4096)))
tried("terminal", lambda: os.openpty())
for name in ("locks", "keys", "key-users"):
    if os.path.exists(f"/proc/{{name}}") and open(f"/proc/{{name}}").read():
        print("open:", name)
""")
    assert opened == []
    assert trained(reply)


@pytest.mark.few(0)
def test_reading_changes_no_access_time(attempts, tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("1")
    os.utime(file, (1, 2))  # a time older than the last change: any reading would set it
    opened, reply, _ = attempts(f"""
open({str(file)!r}).read()
os.listdir({str(tmp_path)!r})
tried("utime", lambda: os.utime({str(file)!r}))
""")
    assert opened == []
    assert file.stat().st_atime == 1
    assert trained(reply)


@pytest.mark.few(0)
def test_memory_is_not_dumped_whatever_the_code_sets(attempts):
    """Linux hands a dump to a pipe under a limit of 0, too; under 1 it makes none at all."""
    opened, reply, _ = attempts("""
if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1):
    print("open: limit", resource.getrlimit(resource.RLIMIT_CORE))
for pair in ((0, 0), (0, 1), (1, 1)):
    tried(f"set {pair}", lambda: resource.setrlimit(resource.RLIMIT_CORE, pair))
    tried(f"prlimit {pair}", lambda: resource.prlimit(0, resource.RLIMIT_CORE, pair))
    pair = (ctypes.c_ulong * 2)(*pair)
    tried("libc", lambda: call_of(libc.setrlimit(4, pair)))
assert resource.getrlimit(resource.RLIMIT_NPROC)[1] <= 4096
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
""")
    assert opened == []
    assert trained(reply)


NUMBERS_OF_ITS_OWN = """
class Numbers:
    def __len__(self):
        return 8

    def __getitem__(self, place):
        return place
"""


@pytest.mark.slow
def test_what_training_needs_goes_on(attempts):
    """Threads, processes, pipes, workers that load data, events of asyncio, a data base in a file of its own."""
    opened, reply, policy = attempts(
        """
import asyncio, subprocess, tempfile, threading
from its_data import Numbers
held = []
thread = threading.Thread(target=lambda: held.append(torch.ones(300, 300) @ torch.ones(300, 300)))
thread.start()
thread.join()
assert held[0][0, 0] == 300
assert subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, check=True).stdout == b"7\\n"
loaded = list(torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2))
assert [int(batch.sum()) for batch in loaded] == [6, 22]
assert asyncio.run(asyncio.sleep(0, 5)) == 5
file = os.open(os.environ["TMPDIR"] + "/own", os.O_RDWR | os.O_CREAT)
copy = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 50)
fcntl.fcntl(copy, fcntl.F_SETFL, fcntl.fcntl(copy, fcntl.F_GETFL) | os.O_APPEND)
os.set_inheritable(copy, True)
torch.save({"x": torch.ones(3)}, os.environ["TMPDIR"] + "/own.pt")
assert torch.load(os.environ["TMPDIR"] + "/own.pt", mmap=True)["x"].sum() == 3
torch.set_num_threads(2)
(torch.ones(500, 500) @ torch.ones(500, 500)).sum()
""",
        **{"its_data.py": NUMBERS_OF_ITS_OWN},
    )
    assert opened == []
    assert trained(reply)
    assert lines(policy) == 2


def test_data_in_a_folder_that_code_would_see_empty_are_refused(attempts, tmp_path):
    _, reply, policy = attempts("", {"data": str(tmp_path / "node" / "images")})
    assert reply.has_error()
    assert lines(policy) == 0


@pytest.mark.parametrize("place", [os.sep, os.path.dirname(os.__file__), "/usr", "/etc"])
def test_a_folder_that_python_needs_is_no_place_for_a_policy(place):
    with pytest.raises(FieldError):
        require_hidden([Path(place)])


def test_of_folders_within_each_other_the_outer_one_is_hidden(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    gone = tmp_path / "gone"
    assert require_hidden([inner, tmp_path / "a", tmp_path / "link", gone]) == (
        (tmp_path / "a").resolve(),
    )
