"""What a long run costs beside time: memory, open files, threads; and clients of whom a tenth fails at random.

Sizes are those of the issue unless ROUNDS or RUNS in the environment says otherwise; each figure is written with its
size into build/endurance.json, or the file that FIGURES names. What a soak held every 50 rounds stands in a file of its
own beside it, so that a soak that is ended leaves how far it came.
"""

import gc
import json
import os
import platform
import random
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedveil.learning import ClientData

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, RUNS = (
    int(os.environ.get(name, size)) for name, size in (("ROUNDS", 2000), ("RUNS", 5000))
)
CLIENTS, EXAMPLES, FAILING = 50, 6, 0.1
OFTEN = 50  # rounds between two lines of a soak's trace
FIGURES = Path(os.environ.get("FIGURES", ROOT / "build" / "endurance.json"))


def thousand():
    """A network of 99 * 10 + 10 = 1,000 parameters on pictures of 9 x 11."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(99, 10))


def examples(partition):
    generator = torch.Generator().manual_seed(partition)
    x = torch.rand(EXAMPLES, 1, 9, 11, generator=generator)
    y = torch.randint(0, 10, (EXAMPLES,), generator=generator)
    return ClientData(x, y, person=torch.arange(EXAMPLES) // 2)


def failing(federation):
    """Have each client fail in every round with the same chance; which one follows the seed. Returns whom, by round."""
    learner, failed = federation.learner, []
    prepare = learner._prepare

    def preparing(task):
        prepared = prepare(task)
        for place, key in enumerate(task.keys):
            if random.Random(str(key)).random() < FAILING:
                prepared[place] = RuntimeError("out of memory")
                failed.append(key[1:])
        return prepared

    learner._prepare = preparing
    return failed


class Watch:
    """Samples of this process, one a round: bytes of memory, open files, threads; every `OFTEN` rounds live tensors."""

    def __init__(self, name):
        self.samples, self.tensors = [], []
        self.trace = FIGURES.parent / "soak" / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl"
        self.trace.parent.mkdir(parents=True, exist_ok=True)
        self.trace.unlink(missing_ok=True)

    def __call__(self, *_):
        status = Path("/proc/self/statm").read_text().split()
        memory = int(status[1]) * os.sysconf("SC_PAGE_SIZE")
        self.samples.append((memory, len(os.listdir("/proc/self/fd")), threading.active_count()))
        rounds = len(self.samples)
        if rounds % OFTEN == 0:
            self.tensors.append((rounds, *live_tensors()))
            self.note(rounds)

    def note(self, rounds):
        memory, files, threads = self.samples[-1]
        _, count, size = self.tensors[-1]
        line = {
            "rounds": rounds,
            "memory bytes": memory,
            "files": files,
            "threads": threads,
            "tensors": count,
            "tensor bytes": size,
            "processor seconds": round(time.process_time(), 2),
        }
        with self.trace.open("a") as file:
            file.write(f"{json.dumps(line)}\n")

    def slopes(self):
        """Bytes, files, threads and bytes of tensors a round, over the second half, where caches are full."""
        half = np.array(self.samples[len(self.samples) // 2 :], dtype=float)
        rounds = np.arange(len(half))
        memory, files, threads = (float(np.polyfit(rounds, column, 1)[0]) for column in half.T)
        found = {"bytes a round": memory, "files a round": files, "threads a round": threads}
        late = np.array(self.tensors[len(self.tensors) // 2 :], dtype=float)
        if len(late) > 1:
            found["tensor bytes a round"] = float(np.polyfit(late[:, 0], late[:, 2], 1)[0])
        return found


def live_tensors():
    """How many tensors are alive once cycles are collected, and the bytes of their entries."""
    gc.collect()
    alive = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
    return len(alive), sum(one.numel() * one.element_size() for one in alive)


class Clock:
    """Seconds of wall and processor time."""

    def __enter__(self):
        self._begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall = time.perf_counter() - self._begun[0]
        self.cpu = time.process_time() - self._begun[1]


def note(part, name, **figures):
    """Write down a figure, with what it was measured on."""
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    rounded = {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in figures.items()}
    rounded |= {"commit": commit(), "load": round(os.getloadavg()[0], 1)}
    known.setdefault("machine", machine())
    known.setdefault(part, {})[name] = rounded
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(known, indent=1) + "\n")


def machine():
    """The kind of the machine, without its name."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "instruction set": torch.backends.cpu.get_cpu_capability(),
    }


def commit():
    asked = ["git", "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
