"""The power is cut at every step of what is new: sums, closings, keys, launchers, reports; and two at one thing."""

import itertools
import multiprocessing
import os
import signal

import pytest
from acts import ACTS, Release

from crash_kit import Disk, Steps, watch_disk
from endurance_kit import note
from fedveil.engines.lifetime import LifetimeLedger
from fedveil.errors import FedVeilError
from fedveil.files import FolderLock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
ENDED = "ended"
NEW = ("release", "sums", "begin", "close", "key", "launcher", "report")


class Kept(Disk):
    """A disk that keeps the modes of files, too."""

    def __init__(self, *arguments):
        self.modes = {}
        super().__init__(*arguments)

    def sync(self, path):
        super().sync(path)
        self.modes[path.stat().st_ino] = path.stat().st_mode & 0o777

    def _put_back(self, folder, number):
        super()._put_back(folder, number)
        for name, (inner, is_folder) in self.names.get(number, {}).items():
            (folder / name).chmod(self.modes.get(inner, 0o700 if is_folder else 0o600))


def watch_handles(steps):
    """Make what goes through handles of the operating system a step, too: a new file, and half of each write."""
    opened, written = os.open, os.write

    def opening(path, flags, *more, **named):
        if not steps.inside(path) or not flags & os.O_CREAT:
            return opened(path, flags, *more, **named)
        steps()
        fresh = not os.path.exists(path)
        handle = opened(path, flags, *more, **named)
        if fresh:
            steps.disk.made(type(steps.root)(path))
        steps()
        return handle

    def writing(handle, data):
        if not steps.inside(os.readlink(f"/proc/self/fd/{handle}")):
            return written(handle, data)
        steps()
        half = written(handle, data[: len(data) // 2])
        steps()
        return half + written(handle, data[half:])

    os.open, os.write = opening, writing


def played(act, home, fatal):
    """Play an act in a process that dies in a power cut at that step, or when it has ended. Whether it ended."""
    root = home / "disk"
    root.mkdir(parents=True)
    act.before(root)
    pid = os.fork()
    if not pid:
        try:
            disk = Kept(root, home / "synced")
            steps = Steps(root, fatal, disk, power_cut=True)
            watch_handles(steps)
            watch_disk(steps)
            act.act(root)
            steps.root = root / "nowhere"
            (home / ENDED).write_text(str(steps.count))
            disk.cut()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "the act failed"
    return (home / ENDED).exists()


@pytest.mark.parametrize("name", NEW)
def test_power(name, tmp_path):
    act, count = ACTS[name], 0
    for fatal in itertools.count(1, act.every):
        home = tmp_path / str(fatal)
        done = played(act, home, fatal)
        count += 1
        try:
            act.after(home / "disk", done)
        except BaseException as error:
            error.add_note(f"{name}: the power was cut at step {fatal}; done: {done}")
            raise
        if done:
            break
    note("power", name, steps=int((home / ENDED).read_text()), played=count)


def spending(root, number, rounds, ready):
    ready.wait()
    for round_ in range(1, rounds + 1):
        Release().release(root, round_, f"process {number}")


def test_two_processes_on_one_ledger_lose_no_line(tmp_path):
    act, rounds, processes = Release(), 30, 4
    act.before(tmp_path)
    forks = multiprocessing.get_context("fork")
    ready = forks.Barrier(processes)
    started = [
        forks.Process(target=spending, args=(tmp_path, number, rounds, ready))
        for number in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * processes
    with LifetimeLedger(tmp_path / "ledgers", "ward", "x", head=tmp_path / "head") as mine:
        assert len(mine.ledger.all_entries) == act.lines + processes * rounds
    note("two", "processes on one ledger", processes=processes, releases=processes * rounds)


def holding(folder, number, taken, count):
    for _ in range(count):
        lock = FolderLock(folder)
        if not lock.try_take():
            continue
        with (folder / "held").open("x"):  # somebody else inside would have made it
            taken.value += 1
        (folder / "held").unlink()
        lock.release()


def test_two_nodes_never_hold_one_folder_together(tmp_path):
    forks = multiprocessing.get_context("fork")
    taken = forks.Value("i", 0)
    nodes = [forks.Process(target=holding, args=(tmp_path, n, taken, 2000)) for n in range(2)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
    assert [node.exitcode for node in nodes] == [0, 0]
    assert taken.value > 100
    note("two", "nodes on one folder", tries=4000, taken=taken.value)


def test_a_folder_of_two_nodes_says_who_holds_it(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.take()
    with pytest.raises(FedVeilError, match=str(os.getpid())):
        second.take()
    first.release()
    second.take()
    second.release()
