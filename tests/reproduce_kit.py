"""A study small enough for tests: four classes of blurred patterns, a linear model, two rounds."""

import numpy as np

from fedveil.experiments.runner import Silent
from fedveil.reproduce import Progressed, Runs, Selection, cells_of, run_cells
from fedveil.reproduce.metric_privacy import Choices, MetricPrivacyStudy, Scale

COUNTS = [[12, 12, 12, 12], [14, 10, 12, 12], [10, 14, 12, 12], [12, 12, 12, 12]]


class Told(Silent):
    """Remembers what it was told, and interrupts when a number of rounds is over."""

    def __init__(self, rounds=None):
        self.rounds, self.said = rounds, []

    def say(self, text):
        self.said.append(text)

    def advance(self, row):
        if self.rounds is not None:
            self.rounds -= 1
            if not self.rounds:
                raise KeyboardInterrupt

    @property
    def started(self):
        return [text for text in self.said if text.startswith("run ")]


def write_patterns(path, seed=0):
    rng = np.random.default_rng(seed)
    patterns = rng.random((4, 6, 6))
    arrays = {}
    for half, each in (("train", 48), ("test", 16)):
        y = np.repeat(np.arange(4), each)
        noise = 0.6 * rng.standard_normal((len(y), 6, 6))
        arrays |= {f"x_{half}": (patterns[y] + noise).astype(np.float32), f"y_{half}": y}
    np.savez(path, **arrays)


def tiny_scale(path, clients=4, **changes):
    data = {
        "name": "npz",
        "path": str(path),
        "clients": clients,
        "partition": "counts",
        "counts": COUNTS[:clients],
        "holdout": 0.25,
        "validation": 0.5,
    }
    values = {"data": data, "model": {"name": "logistic"}, "rounds": 2, "local.epochs": 1, "pretraining.epochs": 1}
    return Scale("tiny", "a test", 148, {**values, **changes})


def tiny_study(path, clients=4, **choices):
    scale = tiny_scale(path, clients)
    return MetricPrivacyStudy(Choices(**{"scale": scale, "workers": 1, "rules": ("fedavg",), "draws": 2, **choices}))


def run_all(study, folder, tables=(), figures=(), progress=None, jobs=1):
    done = Progressed()
    selection = Selection.of(study, tables, figures)
    run_cells(cells_of(study, selection), Runs(folder), progress or Silent(), done, jobs)
    return done
