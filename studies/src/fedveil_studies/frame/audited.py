"""Read audits back from files: how well attacks distinguished independent runs, by setting."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil_lab.attacks.statistics import Estimate, auc_interval, wins
from fedveil_studies.frame.evidence import Difference, difference, reading
from fedveil_studies.frame.study import Study

RESAMPLES = 2000
Scores = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Audited:
    """Results of one audit, read from its file.

    Attributes
    ----------
    study : Study
        Study whose claims the audit tests.
    title, command : str
        Description of data and runs, and the command that repeats it.
    methods : dict of str to str
        Method of each setting.
    sigmas : dict of str to float
        Average sigma of runs with the target, by setting; settings without noise are absent.
    accuracies : dict of str to tuple of float
        Accuracy of each run with the target, by setting, in the order of seeds.
    scores : dict of (str, str) to pair of array
        By attack and setting: verdicts of runs with the target and without, in the order of their seeds.
    valid : frozenset of str
        Attacks that work without the defence.
    """

    study: Study
    title: str
    command: str
    methods: Mapping[str, str]
    sigmas: Mapping[str, float]
    accuracies: Mapping[str, tuple[float, ...]]
    scores: Mapping[tuple[str, str], Scores]
    valid: frozenset[str]

    def setting(self, method: str) -> str | None:
        """Return the first setting with a method, or None."""
        return next((label for label, name in self.methods.items() if name == method), None)

    def tried(self, attack: str, *settings: str) -> bool:
        """Whether an attack was played in all of these settings."""
        return all((attack, setting) in self.scores for setting in settings)

    def auc(self, attack: str, setting: str, tried: int = 1) -> Estimate:
        """Area under the ROC curve with a bootstrap over runs; `tried` attacks share the 5% error."""
        return auc_interval(*self.scores[attack, setting], confidence=1 - 0.05 / tried)

    def difference(self, attack: str, first: str, second: str, tried: int = 1) -> Difference:
        """AUC in the first setting minus that in the second, bootstrapped over runs paired by seed.

        `tried` attacks share the 5% between them. Near 1 the bootstrap is too narrow, and where no pair is out of order
        it has no width at all: the interval is widened to the one that follows from the intervals of both areas and
        the correlation of their bootstraps (Zou 2007, "Toward using confidence intervals to compare correlations").
        """
        won, won_other = wins(*self.scores[attack, first]), wins(*self.scores[attack, second])
        n, m = won.shape
        rng = np.random.default_rng(0)
        rows = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
        columns = rng.multinomial(m, np.full(m, 1 / m), size=RESAMPLES) / m
        ours, other = ((rows @ won) * columns).sum(1), ((rows @ won_other) * columns).sum(1)
        low, high = np.quantile(ours - other, [0.025 / tried, 1 - 0.025 / tried])
        correlation = 0.0
        if ours.std() > 0 and other.std() > 0:
            correlation = float(np.corrcoef(ours, other)[0, 1])
        a, b = self.auc(attack, first, tried), self.auc(attack, second, tried)
        gap = a.point - b.point
        below = _together(a.point - a.low, b.high - b.point, correlation)
        above = _together(a.high - a.point, b.point - b.low, correlation)
        low, high = min(float(low), gap - below), max(float(high), gap + above)
        return Difference(gap, low, high, n, f"+ {m} runs")

    def more_accurate(self, first: str, second: str) -> Difference:
        """Accuracy in the first setting minus that in the second, over runs with the target, paired by seed."""
        pairs = zip(self.accuracies[first], self.accuracies[second], strict=True)
        return difference([a - b for a, b in pairs], "runs")


def _together(first: float, second: float, correlation: float) -> float:
    """How far a difference may be off if its parts may be off by so much."""
    return math.sqrt(max(0.0, first**2 - 2 * correlation * first * second + second**2))


def read_audits(folder: Path, study: Study) -> list[Audited]:
    """Read the files ``audit-*.json`` in a folder and its subfolders.

    Raises
    ------
    FieldError
        If a file cannot be read.
    """
    audits = []
    for path in sorted(folder.rglob("audit-*.json")):
        with reading("audit", path, "restore it, or copy the audit's audit.json there again"):
            audits.append(_audited(json.loads(path.read_bytes()), study))
    return audits


def _audited(values: Mapping[str, Any], study: Study) -> Audited:
    runs, stored = values["replicates"], values.get("accuracies")
    data = str(values["provenance"]["data"]).partition(",")[0]
    methods, sigmas, accuracies = dict[str, str](), dict[str, float](), {}
    for label, about in values["settings"].items():
        methods[label] = str(about["method"])
        if about["sigma"] is not None:
            sigmas[label] = float(about["sigma"])
        if not stored:
            each = about["accuracies"]
        else:
            each = stored[label]
        accuracies[label] = tuple(float(one) for one in each if one is not None)
    scores, valid = {}, set[str]()
    for result in values["results"]:
        if result["supposed"]:  # on metrics that clients are not shown
            continue
        attack, told = str(result["attack"]), result["scores"]
        scores[attack, str(result["setting"])] = np.array(told["in"]), np.array(told["out"])
        if result["valid_without_defence"]:
            valid.add(attack)
    return Audited(
        study=study,
        title=f"on {data}, {runs} + {runs} runs",
        command=str(values["provenance"]["command"]),
        methods=methods,
        sigmas=sigmas,
        accuracies=accuracies,
        scores=scores,
        valid=frozenset(valid),
    )
