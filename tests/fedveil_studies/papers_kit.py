"""A study small enough for tests: four classes of blurred patterns, a linear model, two rounds."""

import copy

import numpy as np

from fedveil_lab.grid import Store
from fedveil_lab.runs.runner import Silent
from fedveil_studies.frame import Choices, Reproduction, Selection, find
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.measure import measured

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


def tiny_paper(path, clients=4, **changes):
    """The metric-privacy study with a scale for tests."""
    data = {
        "name": "npz",
        "path": str(path),
        "classes": 4,
        "clients": clients,
        "partition": "counts",
        "counts": COUNTS[:clients],
        "holdout": 0.25,
        "validation": 0.5,
    }
    values = {
        "data": data,
        "model": {"name": "logistic"},
        "rounds": 2,
        "local.epochs": 1,
        **changes,
    }
    study = copy.copy(find("metric-privacy"))
    scale = ScaleOf(
        what="a test",
        set=values,
        present={"pretraining.epochs": 1},
        facts={"parameters": 148},
        without=tuple(name for name in study.described.changes if name.startswith("pixels-")),
    )
    study.described = study.described.model_copy(
        update={"scales": {**study.described.scales, "tiny": scale}}
    )
    return study


def tiny_study(path, clients=4, **choices):
    chosen = {"scale": "tiny", "workers": 1, "rows": ("fedavg",), "draws": 2, **choices}
    return Reproduction(tiny_paper(path, clients), Choices(**chosen))


def run_all(study, folder, tables=(), figures=(), progress=None, jobs=1):
    cells = study.cells(Selection.of(study, tables, figures))
    return Store(folder).run(cells, progress or Silent(), jobs)


def results(study, table, done):
    return {
        (r.row, r.setting, r.figure): r
        for r in (measured(m, done.outcomes) for m in study.measurements(table))
    }
