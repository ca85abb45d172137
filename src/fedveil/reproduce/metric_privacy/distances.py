"""Which distance follows how far the clients have drifted apart; the paper compares none.

Every distance of `fedveil.calibration.METRICS`, with both meanings of a layer, is measured on the same client models of
the same runs, round by round, beside something that no parametrisation can hide: the share of the server's test images
on which two clients' models disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise
from statistics import fmean

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from fedveil.calibration import METRICS, max_pairwise_distance
from fedveil.engines import Federation
from fedveil.experiments import Config
from fedveil.experiments.memo import Remembering
from fedveil.layout import Grouping, Layout
from fedveil.learning import predict
from fedveil.learning.training import Trained
from fedveil.reproduce.cells import Outcome
from fedveil.reproduce.measure import Entry, Replicate, Value
from fedveil.reproduce.metric_privacy.accuracy import Printed
from fedveil.reproduce.metric_privacy.plan import Plan
from fedveil.reproduce.models import Examples, test_half
from fedveil.reproduce.study import Curve, Line, Plot

DISAGREEMENT = "disagreement"
DECAY = "1 / round"  # falls as training converges, and knows nothing of any model
RANK, CHANGES = "rank correlation", "rank correlation of changes"
Series = Sequence[float]
RULE = "fedavg"
SCENARIOS = {"homogeneous": "homogeneous", "non-iid": "different sizes", "cia": "different classes"}
WATCHED = {"vanilla": "vanilla", "metric": "metric privacy"}


@cache
def registry() -> Mapping[str, tuple[str, Grouping]]:
    """Every distance that metric privacy can be given, by name; a grouping that changes nothing is left out."""
    probe = Layout.from_shapes({"a.weight": (2, 2), "a.bias": (2,), "b.weight": (1, 2), "b.bias": (1,)})
    found: dict[str, tuple[str, Grouping]] = {}
    for metric, groups_of in METRICS.items():
        found[metric] = (metric, "array")
        if groups_of(probe, "module") != groups_of(probe, "array"):
            found[f"{metric}, modules"] = (metric, "module")
    return found


def disagreement(models: Tensor, layout: Layout, module: nn.Module, x: Tensor) -> float:
    """The largest share of examples [N, ...] on which two of the models [n, d] name different classes."""
    said = [predict(module, layout, model, x).argmax(1) for model in models]
    return max((float((a != b).double().mean()) for a, b in combinations(said, 2)), default=0.0)


def divergences(models: Tensor, layout: Layout, module: nn.Module, x: Tensor) -> dict[str, float]:
    """Every distance between the models [n, d], and their disagreement on x."""
    found = {
        name: max_pairwise_distance(models, layout, grouping, metric) for name, (metric, grouping) in registry().items()
    }
    return {**found, DISAGREEMENT: disagreement(models, layout, module, x)}


@dataclass(frozen=True)
class Divergence:
    """What the clients' models differ by, after every round, before the server combines them.

    Parameters
    ----------
    full : Config
        The scenario, for the examples to disagree on: the server's test half.
    """

    full: Config

    @property
    def name(self) -> str:
        """With what decides the examples."""
        what = ", ".join(self.figures)
        return f"{what} on the test half {self.full.data.model_dump_json()} {self.full.seed}"

    @property
    def figures(self) -> tuple[str, ...]:
        """Every distance, and the disagreement."""
        return (*registry(), DISAGREEMENT)

    @cached_property
    def _examples(self) -> Examples:
        return test_half(self.full)

    def __call__(self, federation: Federation) -> Mapping[str, float]:
        """Of the models that the clients sent in the last round."""
        trainer = federation.learner.trainer
        assert isinstance(trainer, Remembering)  # as under every cell
        sent = torch.stack([trained.model for trained in trainer.last if isinstance(trained, Trained)])
        return divergences(sent, federation.layout, federation.learner.model, self._examples.x)


def distance_entries(plan: Plan, _printed: Printed) -> list[Entry]:
    """The table: what each distance is, how it ends, and its rank correlation with the disagreement over the rounds.

    Both mostly fall while training converges, first fast and then slowly, and so does much else. So the correlation of
    their changes from round to round stands beside it, which lines do not have in common, and for either that of
    1 / round: a distance tells of the clients what it has beyond it.
    """
    measures: dict[str, Callable[[str], Callable[[Sequence[Outcome]], Value]]] = {
        "mean d": _mean,
        "last / first": _trend,
        RANK: lambda name: _rank(name, rank_correlation),
        CHANGES: lambda name: _rank(name, correlation_of_changes),
    }
    entries = []
    for scenario, shown in SCENARIOS.items():
        for setting in WATCHED:
            replicates = _replicates(plan, scenario, setting)
            for name in (*registry(), DECAY, DISAGREEMENT):
                for figure, measure in measures.items():
                    if name in (DECAY, DISAGREEMENT) and (name == DECAY) != (figure in (RANK, CHANGES)):
                        continue
                    entries.append(Entry(f"{shown}: {name}", setting, figure, replicates, measure(name)))
    return entries


def distance_plot(plan: Plan, _printed: Printed, title: str) -> Plot:
    """Every distance over the rounds in multiples of its own mean, a panel a scenario."""
    lines = [
        Line(f"{shown}, {words}", name, _replicates(plan, scenario, setting), _relative(name))
        for setting, words in WATCHED.items()
        for scenario, shown in SCENARIOS.items()
        for name in (*registry(), DISAGREEMENT)
    ]
    return Plot(title, "round", "in multiples of its mean over the rounds", lines)


def _replicates(plan: Plan, scenario: str, setting: str) -> tuple[Replicate, ...]:
    return tuple(
        Replicate(seed, (plan.cell(scenario, RULE, setting, seed, watcher=Divergence(plan.full(scenario, seed))),))
        for seed in plan.seeds
    )


def _series(outcomes: Sequence[Outcome], name: str) -> list[float]:
    if name == DECAY:
        return decay(len(outcomes[0].summary.rows))
    return [float(row["watched"][name]) for row in outcomes[0].summary.rows]


def _mean(name: str) -> Callable[[Sequence[Outcome]], Value]:
    return lambda outcomes: Value(fmean(_series(outcomes, name)))


def _trend(name: str) -> Callable[[Sequence[Outcome]], Value]:
    def measure(outcomes: Sequence[Outcome]) -> Value:
        values = _series(outcomes, name)
        return Value(values[-1] / values[0] if values[0] else float("nan"))

    return measure


def _rank(name: str, correlate: Callable[[Series, Series], float]) -> Callable[[Sequence[Outcome]], Value]:
    return lambda outcomes: Value(correlate(_series(outcomes, name), _series(outcomes, DISAGREEMENT)))


def rank_correlation(first: Series, second: Series) -> float:
    """Spearman's; NaN where either never moves."""
    if any(len(set(values)) < 2 for values in (first, second)):
        return float("nan")
    return float(spearmanr(first, second).statistic)


def decay(rounds: int) -> list[float]:
    """``1 / round``, to compare with: see `DECAY`."""
    return [1 / round_ for round_ in range(1, rounds + 1)]


def correlation_of_changes(first: Series, second: Series) -> float:
    """Spearman's correlation of the changes from each value to the next.

    A common straight trend does not make it high; a common slowing down does.
    """
    return rank_correlation(*([b - a for a, b in pairwise(values)] for values in (first, second)))


def _relative(name: str) -> Callable[[Sequence[Outcome]], Curve]:
    def curve(outcomes: Sequence[Outcome]) -> Curve:
        values = _series(outcomes, name)
        mean = fmean(values)
        return Curve([float(r) for r in range(1, len(values) + 1)], [v / mean if mean else v for v in values])

    return curve
