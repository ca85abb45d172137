"""One process at a time in a run's folder, and what is said about the model that is left after a crash."""

import errno
import json
import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

from fedveil.errors import FieldError, LedgerError
from fedveil.files import LOCK as FILE
from fedveil.files import FolderLock
from fedveil_lab.config import parse
from fedveil_lab.runs import run
from fedveil_lab.runs.checkpoint import Checkpoint
from fedveil_lab.runs.runner import Silent

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def config(source="reproducible", **privacy):
    data, model = {"name": "breast-cancer", "clients": 2}, {"name": "logistic"}
    privacy = {"method": "global", "noise_multiplier": 1.0, "clip": 1.0, **privacy}
    return parse(
        {
            "name": "tiny",
            "rounds": 3,
            "data": data,
            "model": model,
            "privacy": privacy,
            "source": {"kind": source},
        }
    )


class Listening(Silent):
    """Remembers what it was told."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


class Paused:
    """A process of its own that runs, and waits after a round until it may go on."""

    def __init__(self, folder, after=1, **options):
        told, self._gate = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(
                self._gate[1]
            )  # so that it goes on, and ends, when the test's process has ended
            status = 1
            try:
                progress = Silent()
                progress.advance = lambda row: (
                    row["round"] != after or (os.write(told[1], b"x"), os.read(self._gate[0], 1))
                )
                run(config(), folder, progress=progress, **options)
                status = 0
            finally:
                os._exit(status)
        os.close(told[1])
        assert os.read(told[0], 1) == b"x"

    def end(self):
        os.write(self._gate[1], b"x")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_while_one_process_runs_no_other_writes(tmp_path):
    folder = tmp_path / "run"
    first = Paused(folder)
    before = contents(folder)
    with pytest.raises(
        FieldError, match=f"is being written to by process {first.pid} on .*: wait until that has"
    ):
        run(config(), folder, resume=True)
    with pytest.raises(FieldError, match="holds a run already"):
        run(config(), folder)
    assert contents(folder) == before
    assert first.end() == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert run(config(), folder, resume=True).values["rounds"] == 3


def test_of_two_processes_that_go_on_one_is_refused(tmp_path):
    folder = tmp_path / "run"
    Paused(folder).kill()
    second = Paused(folder, after=2, resume=True)
    with pytest.raises(FieldError, match=f"is being written to by process {second.pid}"):
        run(config(), folder, resume=True)
    assert second.end() == 0
    assert len((folder / "ledger" / "server.jsonl").read_text().splitlines()) == 4


def test_the_lock_of_a_killed_process_keeps_nobody_out(tmp_path):
    folder = tmp_path / "run"
    first = Paused(folder)
    first.kill()
    assert str(first.pid) in (folder / FILE).read_text()
    assert run(config(), folder, resume=True).values["rounds"] == 3
    whole = run(config(), tmp_path / "whole")
    assert whole.values["metrics"] == run(config(), folder, resume=True).values["metrics"]


def test_two_new_runs_do_not_start_in_one_folder(tmp_path, monkeypatch):
    # the other one starts after this one has found the folder empty
    folder, real = tmp_path / "run", FolderLock.take

    def late(lock):
        monkeypatch.setattr(FolderLock, "take", real)
        run(config(), folder)
        real(lock)

    monkeypatch.setattr(FolderLock, "take", late)
    with pytest.raises(FieldError, match="holds a run already"):
        run(config(), folder)
    assert run(config(), folder, resume=True).values["rounds"] == 3


def test_a_refused_or_failed_run_lets_go(tmp_path):
    folder = tmp_path / "run"
    run(config(), folder)
    with pytest.raises(FieldError, match="another configuration"):
        run(config(noise_multiplier=2.0), folder, resume=True)
    lock = FolderLock(folder)
    lock.take()
    assert str(os.getpid()) in (folder / FILE).read_text()
    lock.release()
    lock.release()
    assert (folder / FILE).read_bytes() == b""  # a finished run names no machine


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fedveil.files.disk.lock", refuse)
    with pytest.raises(FieldError, match=r"cannot be locked \(No locks available\): give a folder"):
        run(config(), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [FILE]
    monkeypatch.undo()
    assert run(config(), tmp_path / "run").values["rounds"] == 3


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root"
)
def test_a_folder_that_cannot_be_written_is_refused_and_left_as_it_is(tmp_path):
    folder = tmp_path / "run"
    run(config(), folder)
    before = contents(folder)
    (folder / FILE).chmod(0o444)
    folder.chmod(0o555)
    try:
        with pytest.raises(PermissionError):
            run(config(), folder, resume=True)
        assert contents(folder) == before
    finally:
        folder.chmod(0o755)
        (folder / FILE).chmod(0o644)
    assert run(config(), folder, resume=True).values["rounds"] == 3


def killed_before_its_checkpoint(folder, spec, round_):
    """A run that is killed between the commit of a round and its checkpoint."""
    pid = os.fork()
    if not pid:
        real = Checkpoint.write

        def write(checkpoint, where):
            if checkpoint.round == round_:
                os.kill(os.getpid(), signal.SIGKILL)
            real(checkpoint, where)

        Checkpoint.write = write
        run(spec, folder)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("source", "again"), [("secure", "what is recorded of it stays"), ("reproducible", "same bits")]
)
def test_after_a_crash_the_message_says_which_model_stands(tmp_path, source, again):
    folder, listening = tmp_path / "run", Listening()
    killed_before_its_checkpoint(folder, config(source), 2)
    assert run(config(source), folder, resume=True, progress=listening).values["rounds"] == 3
    [text] = [text for text in listening.said if "ledger" in text]
    assert "the ledgers hold round 2, which has no checkpoint: the model of round 1 stands" in text
    assert again in text


def test_a_budget_without_room_for_a_redraw_leaves_the_checkpointed_model(tmp_path):
    # two releases of mu = 1 fit (1.414), a third (1.732) does not: the second release's bits are lost in the crash
    spec, folder = config("secure", budget={"epsilon": 7.0}), tmp_path / "run"
    killed_before_its_checkpoint(folder, spec, 2)
    kept = load_file(folder / "checkpoint" / "round.safetensors")["models"][0]
    summary = run(spec, folder, resume=True)
    assert "budget is used up" in summary.stopped
    assert "the last checkpointed model stands" in summary.stopped
    assert summary.values["rounds"] == 1
    left = load_file(folder / "model.safetensors")
    assert torch.equal(
        torch.cat([v.reshape(-1) for v in left.values()]).sort().values, kept.sort().values
    )
    lines = (folder / "ledger" / "server.jsonl").read_text().splitlines()
    assert [json.loads(line).get("round") for line in lines] == [
        None,
        None,
        1,
        2,
    ]  # what binds the run, and the budget
    assert summary.values["guarantees"]["server"]["epsilon"] <= 7.0


def test_a_ledger_cannot_be_emptied_together_with_the_checkpoint(tmp_path):
    # the budget would start over
    folder = tmp_path / "run"
    run(config(), folder)
    shutil.rmtree(folder / "ledger")
    (folder / "checkpoint" / "round.safetensors").unlink()
    with pytest.raises(
        LedgerError, match=r"'server' lacks round 1.*restore the file or start a new run"
    ):
        run(config(), folder, resume=True)
    assert [
        json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ] == [1, 2, 3]
