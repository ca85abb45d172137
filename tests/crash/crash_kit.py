"""Kill runs where they touch the disk or hand something over, go on with them, and check what is left.

Run as a script: it imports everything once and forks a child for every attempt at a run, so that an attempt costs a
fraction of a second. A child counts its *steps*: just before and just after it opens, replaces or syncs a file, makes a
folder, draws a release or hands one over, and several times within each write. At the step it was told, it dies by
SIGKILL, or in a simulated power cut: then all that was not synced is lost as well, names as well as bytes.

What a party hands over is noted in the *wire log*, outside the run's folder: it stands for what others have received.
"""

import io
import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from fedveil.accounting import Ledger, Release, digest
from fedveil.engines.client import ClientParty
from fedveil.engines.client_checks import PROTECT
from fedveil.engines.party import COMBINE
from fedveil.engines.server import ServerParty
from fedveil.errors import FieldError
from fedveil_lab.config import parse
from fedveil_lab.runs import run

EPSILON = 10.0  # of the server under "global": four releases cost 9.997, so that a second redraw ends the run early
METHODS = {
    "global": {
        "aggregator": {"name": "fedadam"},
        "privacy": {
            "method": "global",
            "noise_multiplier": 1.0,
            "clip": 1.0,
            "budget": {"epsilon": EPSILON},
        },
    },
    # the noise of a round depends on what the client released in the round before: its state has to survive
    "sga-ldp": {
        "privacy": {
            "method": "sga-ldp",
            "epsilon_min": 5.0,
            "epsilon_max": 8.0,
            "similarity": "released",
        },
    },
    "group": {"privacy": {"method": "group", "hypotheses": 2, "noise_multiplier": 1.0}},
    # a share that left is not sent again, and a round that was summed is not summed again
    "record-sum": {
        "privacy": {"method": "record", "sum": "trusted", "examples": 100, "noise_multiplier": 1.0}
    },
}


def config(method, source, rounds):
    data, model = {"name": "breast-cancer", "clients": 3}, {"name": "logistic"}
    values = {
        "name": "tiny",
        "rounds": rounds,
        "data": data,
        "model": model,
        "source": {"kind": source},
    }
    return parse({**values, **METHODS[method]})


ROUNDS_LEAVE = {"checkpoint/round.safetensors", "metrics.csv", "metrics.jsonl"}


class Disk:
    """What of a folder survives a power cut: of a file the bytes that were synced, of a folder the names.

    Parameters
    ----------
    root : Path
        The folder.
    known : Path
        Remembers, from one attempt to the next, what was synced.
    """

    def __init__(self, root, known):
        self.root, self._known = root, known
        self.content, self.names = {}, {}  # by inode: bytes, or {name: (inode, is it a folder)}
        if known.exists():
            self.content, self.names = pickle.loads(known.read_bytes())
        else:
            for path in (root, *root.rglob("*")):
                self.sync(path)

    def keep(self):
        """Before a death that loses nothing yet."""
        self._known.write_bytes(pickle.dumps((self.content, self.names)))

    def sync(self, path):
        if path.is_dir():
            entries = {entry.name: (entry.inode(), entry.is_dir()) for entry in os.scandir(path)}
            self.names[path.stat().st_ino] = entries
        else:
            self.content[path.stat().st_ino] = path.read_bytes()

    def sync_handle(self, handle):
        number = os.fstat(handle).st_ino
        for path in (self.root, *self.root.rglob("*")):
            if path.stat().st_ino == number:
                self.sync(path)

    def made(self, path):
        """Something new, whose inode may be that of something removed."""
        number = path.stat().st_ino
        self.content.pop(number, None)
        self.names.pop(number, None)

    def cut(self):
        """Lose what was not synced."""
        left = self.root.with_name("left")
        left.mkdir()
        self._put_back(left, self.root.stat().st_ino)
        shutil.rmtree(self.root)
        left.rename(self.root)
        self._known.unlink(missing_ok=True)

    def _put_back(self, folder, number):
        for name, (inner, is_folder) in self.names.get(number, {}).items():
            if is_folder:
                (folder / name).mkdir()
                self._put_back(folder / name, inner)
            else:
                (folder / name).write_bytes(self.content.get(inner, b""))


class Steps:
    """Counts the steps of this process, and kills it at one of them.

    Parameters
    ----------
    root : Path
        Changes below it are steps.
    fatal : int or None
        Which step is the last.
    disk : Disk or None
        For power cuts.
    power_cut : bool
        Die in one.
    """

    def __init__(self, root, fatal, disk=None, power_cut=False):
        self.root, self.fatal, self.disk, self.power_cut, self.count = (
            root,
            fatal,
            disk,
            power_cut,
            0,
        )

    def __call__(self):
        self.count += 1
        if self.count != self.fatal:
            return
        if self.disk is not None:
            self.root = self.root / "nowhere"  # what follows is no step
            if self.power_cut:
                self.disk.cut()
            else:
                self.disk.keep()
        os.kill(os.getpid(), signal.SIGKILL)

    def inside(self, path):
        return isinstance(path, str | os.PathLike) and self.root in (
            Path(path),
            *Path(path).parents,
        )


class PiecewiseFile:
    """A file whose writes reach the disk in pieces; the last ones are what ends a line of a ledger."""

    def __init__(self, file, steps):
        self._file, self._steps = file, steps

    def write(self, data):
        size, start = len(data), 0
        for end in sorted({min(1, size), size // 2, *(max(0, size - n) for n in (3, 2, 1, 0))}):
            self._steps()
            self._file.write(data[start:end])
            self._file.flush()
            start = end
        self._steps()
        return size

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


def watch_disk(steps):
    """Make every change of the run's folder a step."""
    opened, replace, mkdir = io.open, os.replace, os.mkdir

    def stepping_open(file, mode="r", *args, **kwargs):
        if not set(mode) & set("wax+") or not steps.inside(file):
            return opened(file, mode, *args, **kwargs)
        steps()
        fresh = not os.path.exists(file)
        stream = opened(file, mode, *args, **kwargs)
        if fresh and steps.disk is not None:
            steps.disk.made(Path(file))
        steps()
        return PiecewiseFile(stream, steps)

    def stepping_fsync(handle):
        steps()
        if steps.disk is not None:
            steps.disk.sync_handle(handle)
        steps()

    def stepping_replace(source, target, **kwargs):
        steps()
        replace(source, target, **kwargs)
        steps()

    def stepping_mkdir(path, *args, **kwargs):
        if not steps.inside(path):
            return mkdir(path, *args, **kwargs)
        steps()
        mkdir(path, *args, **kwargs)
        if steps.disk is not None:
            steps.disk.made(Path(path))
        return steps()

    io.open, os.fsync, os.replace, os.mkdir = (
        stepping_open,
        stepping_fsync,
        stepping_replace,
        stepping_mkdir,
    )


def watch_parties(log, steps):
    """Note what is handed over, with a step before it is drawn, before it is handed over, and after."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    admit, release, combine = ClientParty.admit, ClientParty.release, ServerParty.combine

    def hand_over(party, round_, purpose, releases):
        if (
            party.method.client.trust == "central" and purpose == PROTECT
        ):  # a declared identity: nothing to record
            return
        key = (party.ledger.party, round_, purpose, party.ledger.find((round_, purpose)).attempt)
        steps()
        os.write(handle, (json.dumps([party.ledger.run, *key, digest(releases)]) + "\n").encode())
        steps()

    def stepping_admit(party, broadcast):
        steps()
        verdict = admit(party, broadcast)
        if isinstance(verdict, tuple):  # an answer without training
            hand_over(party, broadcast.public.round, PROTECT, verdict)
        return verdict

    def stepping_release(party, releases, facts, *more):
        steps()
        released = release(party, releases, facts, *more)
        hand_over(party, facts.broadcast.public.round, PROTECT, released)
        return released

    def stepping_combine(party, broadcast, *replies):
        steps()
        opened, record = combine(party, broadcast, *replies)
        hand_over(party, broadcast.public.round, COMBINE, (Release("model", opened.models),))
        return opened, record

    ClientParty.admit, ClientParty.release = stepping_admit, stepping_release
    ServerParty.combine = stepping_combine


class Case:
    """One run, killed and gone on with until it ends.

    Below `home`: the disk with the run's folder, the wire log, and what attempts leave for the test.
    """

    def __init__(self, home, spec):
        self.home, self.spec = home, spec
        self.disk, self.folder, self.log = home / "disk", home / "disk" / "run", home / "wire.log"
        self.kills, self.stopped = 0, False
        self.disk.mkdir(parents=True)

    def start(self, fatal=None, *, modelled=False, power_cut=False, watched=True):
        """Fork an attempt; the first starts the run, the others go on with it."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            disk = Disk(self.disk, self.home / "synced") if modelled else None
            steps = Steps(self.disk, fatal, disk, power_cut)
            self._watch(steps)
            if watched:
                watch_disk(steps)
            self._go()
            (self.home / "steps").write_text(str(steps.count))
            status = 0
        except BaseException:
            (self.home / "error").write_text(traceback.format_exc())
        finally:
            os._exit(status)

    def _watch(self, steps):
        watch_parties(self.log, steps)

    def _go(self):
        if self.kills:
            try:
                run(self.spec, self.folder, resume=True)
                return
            except FieldError as error:
                if "leave --resume out" not in str(error):  # the way out that the message names
                    raise
        run(self.spec, self.folder)

    def wait(self, pid):
        """True if the run ended, False if it was killed."""
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            self.kills += 1
            self.check_kept()
            return False
        assert os.WEXITSTATUS(status) == 0, (self.home / "error").read_text()
        return True

    @property
    def summed(self):
        return self.spec.privacy.options.get("sum") == "trusted"

    def wire(self):
        return (
            [json.loads(line) for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    def ledgers(self):
        """The entries of every party, whole lines only, and without what it declared before them."""
        books = {}
        for path in sorted((self.folder / "ledger").glob("*.jsonl")):
            for value in (json.loads(line) for line in path.read_text().split("\n")[:-1]):
                books.setdefault(value["party"], []).extend([value] if "round" in value else [])
        return books

    def check_kept(self):
        """Whatever was handed over is in its party's ledger, at once where the same bits cannot be drawn again."""
        if self.spec.source.kind == "secure":
            self._check_wire()

    def _check_wire(self):
        books = {
            party: {
                (e["run"], e["round"], e["purpose"], e["attempt"], e["digest"]) for e in entries
            }
            for party, entries in self.ledgers().items()
        }
        handed_over = {}
        for run_id, party, round_, purpose, attempt, mark in self.wire():
            entry = (run_id, round_, purpose, attempt, mark)
            assert entry in books.get(party, ()), (
                f"handed over by {party}, but not in its ledger: {entry}"
            )
            again = (party, round_, purpose, attempt) in handed_over
            before = handed_over.setdefault((party, round_, purpose, attempt), mark)
            assert before == mark, (
                f"{party}, {purpose} of round {round_}, attempt {attempt}: two digests handed over"
            )
            if self.summed and self.spec.source.kind == "secure":
                assert not again, (
                    f"{party} handed out its share of round {round_}, attempt {attempt}, twice"
                )
                assert purpose != COMBINE or attempt == 0, f"round {round_} was summed twice"
        for party, entries in books.items():
            assert len(entries) >= sum(key[0] == party for key in handed_over)

    def check_end(self, whole):
        """The finished run; `whole` is one that was never interrupted."""
        self._check_wire()
        assert self.wire()
        run_id = json.loads((self.folder / "checkpoint" / "run.json").read_text())["run_id"]
        books = {}
        for path in (self.folder / "ledger").glob("*.jsonl"):
            for line in path.read_text().splitlines():
                books.setdefault(json.loads(line)["party"], []).append(line)
        for party, lines in books.items():
            Ledger.parse(run_id, party, lines)
        summary = json.loads((self.folder / "summary.json").read_text())
        files = whole.files() if summary["rounds"] else whole.files() - ROUNDS_LEAVE
        assert self.files() >= files, f"files are missing: {sorted(files - self.files())}"
        assert self.files() <= whole.files(), (
            f"files are left: {sorted(self.files() - whole.files())}"
        )
        if self.spec.source.kind == "reproducible":
            self._check_same(whole)
        elif summary["stopped"]:
            self.stopped = True
            if self.summed:
                assert any(
                    why in summary["stopped"] for why in ("budget is used up", "recorded a sum")
                )
            else:
                assert "budget is used up" in summary["stopped"]
                assert len(self.ledgers()["server"]) == 4
        else:
            assert summary["rounds"] == len(self.rows()) == self.spec.rounds
        if self.spec.privacy.budget.epsilon is not None:
            assert summary["guarantees"]["server"]["epsilon"] <= self.spec.privacy.budget.epsilon

    def _check_same(self, whole):
        for name in (
            "model.safetensors",
            "config.toml",
            "checkpoint/run.json",
            "checkpoint/round.safetensors",
        ):
            assert (self.folder / name).read_bytes() == (whole.folder / name).read_bytes(), (
                f"{name} differs"
            )
        for path in (self.folder / "ledger").iterdir():
            assert path.read_bytes() == (whole.folder / "ledger" / path.name).read_bytes(), (
                f"{path.name} differs"
            )
        assert self.rows() == whole.rows()

    def rows(self):
        rows = [
            json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()
        ]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    def files(self):
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


class Sweep:
    """All cases of one configuration, and their figures."""

    kind = Case

    def __init__(self, home, method, source, rounds):
        self.home, self.spec = home, self.specified(method, source, rounds)
        self.cases, self.kills, self.stopped, self.failures = 0, 0, 0, []
        began = time.perf_counter()
        self.warm()  # what is imported and cached on the way is then there in every child
        self.whole = self.kind(home / "whole", self.spec)
        started = time.perf_counter()
        assert self.whole.wait(self.whole.start())
        self.seconds = time.perf_counter() - started
        self.whole.check_end(self.whole)
        self.steps = int((self.whole.home / "steps").read_text())
        self.random = random.Random(f"{method} {source}")
        self.began = began

    def specified(self, method, source, rounds):
        return config(method, source, rounds)

    def warm(self):
        run(self.spec, self.home / "warm")
        run(self.spec, self.home / "warm", resume=True)

    def every_step(self, deaths, stride=1):
        """Die at every step; if a second death is given, also while going on, at a random step."""
        for step in range(1, self.steps + 1, stride):
            fatal = [step, *(self.random.randint(1, self.steps) for _ in deaths[1:])]
            name = ", then ".join(
                f"{death} at step {at}" for death, at in zip(deaths, fatal, strict=True)
            )
            self._case(name, lambda case, fatal=fatal: self._by_steps(case, deaths, fatal))

    def moments(self, count):
        """Kill from outside, at random moments, up to three times a case."""
        while self.kills < count and not self.failures:
            self._case(
                f"moments after {self.kills} kills", lambda case: self._by_timer(case, count)
            )

    def _by_steps(self, case, deaths, fatal):
        modelled = "power cut" in deaths
        ended = any(
            case.wait(case.start(step, modelled=modelled, power_cut=death == "power cut"))
            for death, step in zip(deaths, fatal, strict=True)
        )
        assert case.kills, "no step was fatal"
        assert ended or case.wait(case.start())

    def _by_timer(self, case, count):
        for _ in range(min(3, count - self.kills)):
            pid = case.start(watched=False)
            time.sleep(self.random.uniform(0, self.seconds))
            os.kill(pid, signal.SIGKILL)
            if case.wait(pid):
                return
        assert case.wait(case.start(watched=False))

    def _case(self, name, kill):
        case = self.kind(self.home / "case", self.spec)
        self.cases += 1
        try:
            kill(case)
            case.check_end(self.whole)
        except Exception as error:  # a case that cannot be checked has failed
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        self.kills += case.kills
        self.stopped += case.stopped
        shutil.rmtree(case.home)

    def figures(self):
        elapsed = round(time.perf_counter() - self.began, 1)
        counts = {
            "cases": self.cases,
            "kills": self.kills,
            "stopped": self.stopped,
            "failed": len(self.failures),
        }
        return {"steps": self.steps, **counts, "seconds": elapsed, "failures": self.failures[:5]}


def main(home, *plans, sweeping=Sweep):
    """Carry out plans (JSON): method, source, rounds, and the deaths (with stride) or the number of moments."""
    torch.set_num_threads(1)
    for number, plan in enumerate(json.loads(plan) for plan in plans):
        sweep = sweeping(Path(home) / str(number), plan["method"], plan["source"], plan["rounds"])
        if "moments" in plan:
            sweep.moments(plan["moments"])
        else:
            sweep.every_step(plan["deaths"], plan.get("stride", 1))
        print(json.dumps({**plan, **sweep.figures()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
