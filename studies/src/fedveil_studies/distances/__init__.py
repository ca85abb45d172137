"""Which distance tells how different the clients' data are: over runs, from one class a client to iid."""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from statistics import fmean

import torch

from fedveil_lab.grid import Outcome
from fedveil_lab.runs.deal import deal_out
from fedveil_studies.frame import Curve, Study, Value
from fedveil_studies.frame.models import Examples, held_out
from fedveil_studies.metric_privacy import measures

study = Study.of(__name__)
study.curve("relative")(measures.relative)
for name in ("mean d", "first d", "rank", "rank of changes"):
    study.measure(name)(measures.study.measures[name])


@study.probe("distances")
class OnHeldOut(measures.Divergence):
    """Disagreement of models on clients' held-out examples, as digits have no test half."""

    @property
    def name(self) -> str:
        """Name with everything that determines the examples."""
        return super().name.replace("the test half", "what clients hold out")

    @cached_property
    def examples(self) -> Examples:
        """Held-out examples of all clients."""
        dealt = deal_out(self.full.data, self.full.seed)
        held = [held_out(client) for client in dealt.clients if client.test_x is not None]
        x, y = map(torch.cat, zip(*held, strict=True))
        return Examples(x, y, dealt.dataset.classes)


def data_difference(outcome: Outcome) -> float:
    """Total variation distance between clients' class shares, averaged over pairs of clients."""
    dealt = deal_out(outcome.cell.config.data, outcome.cell.config.seed)
    shares = []
    for client in dealt.clients:
        counts = client.y.bincount(minlength=dealt.dataset.classes).double()
        shares.append(counts / counts.sum())
    apart = []
    for one, other in combinations(shares, 2):
        apart.append(float((one - other).abs().sum() / 2))
    return fmean(apart)


@study.measure("follows the data")
def follows_the_data(outcomes: Sequence[Outcome], name: str) -> Value:
    """Rank correlation of the mean distance with the difference of the data, over the runs of a seed."""
    means = [fmean(outcome.series(name)) for outcome in outcomes]
    return Value(measures.rank_correlation(means, list(map(data_difference, outcomes))))


@study.curve("over the data")
def over_the_data(outcomes: Sequence[Outcome], name: str) -> Curve:
    """Mean distance relative to the last run's, against the difference of the data."""
    means = [fmean(outcome.series(name)) for outcome in outcomes]
    differences = list(map(data_difference, outcomes))
    return Curve(differences, [mean / means[-1] for mean in means])
