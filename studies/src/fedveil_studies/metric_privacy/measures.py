"""What the paper measures beside accuracy: its client inference, and which distance follows the clients' disagreement.

The attacker is the first of three clients, the target the last. Single shot: one round of 20 epochs, and the loss of
the new model on a tenth of the target's training images beside the aggregated loss. Multi-round: one run with the
target and one without, and the loss on that tenth with noise after every round.

The paper compares no distances. Here each is measured on the same client models, beside what no parametrisation can
hide: the share of the server's test images on which two clients' models disagree.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import combinations, pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from fedveil.calibration import COSINE, DISTANCES, max_pairwise_distance
from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil.layout import Grouping, Layout
from fedveil.learning import cross_entropy, evaluate, predict
from fedveil.mechanisms import keyed_seed
from fedveil_lab.config import Config
from fedveil_lab.config.sections import Data
from fedveil_lab.games.world import shadow_of
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.deal import deal_out
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.models import Examples, outputs, test_half
from fedveil_studies.frame.plots import Curve
from fedveil_studies.frame.reproduction import Reproduction
from fedveil_studies.frame.result import Value
from fedveil_studies.frame.samples import samples
from fedveil_studies.frame.standard import final
from fedveil_studies.frame.study import Study
from fedveil_studies.metric_privacy.printed import multi_round, single_shot

if TYPE_CHECKING:
    from fedveil_lab.report.plotting import Figure

study = Study.of(__package__ or "")

PARAMETERS = 6_517_476  # of the paper's network, at its image size
UNIT = "bootstrap over the rounds of one pair of runs, as printed; rounds are not independent"
DISAGREEMENT = "disagreement"
DECAY = "1 / round"  # falls as training converges, and knows nothing of any model


@study.picture("1")
def by_class(reproduction: Reproduction) -> "Figure":
    """Images of the training set by class, in the size of the scale."""
    return samples(reproduction, "homogeneous")


@study.adjust
def keep_noise_to_clip(values: dict[str, Any], scale: ScaleOf, flags: frozenset[str]) -> None:
    """Keep the paper's z sqrt(parameters) / n at every scale, but for the reading printed-noise."""
    if "unscaled" not in flags:
        values["privacy"]["noise_multiplier"] *= noise_factor(scale)


def noise_factor(scale: ScaleOf) -> float:
    """Factor on the paper's noise multiplier that keeps the noise's length relative to the clip."""
    return math.sqrt(PARAMETERS / scale.facts.get("parameters", PARAMETERS))


@study.change("out")
def without_target(values: dict[str, Any]) -> None:
    """Use the same data without the last client; the others keep theirs."""
    data = values["data"]
    if data["clients"] < 2:
        raise FieldError(
            "data.clients", data["clients"], "needs at least two: an attacker and a target"
        )
    values["data"] = {**data, "clients": data["clients"] - 1, "counts": data["counts"][:-1]}


@dataclass(frozen=True)
class ShadowLoss:
    """Probe of the released model's loss on the attacker's copy of the target's data, after every round.

    Parameters
    ----------
    full : Config
        The scenario with the target, whichever world is run.
    """

    full: Config

    figures: ClassVar[tuple[str, ...]] = ("shadow_loss",)

    @property
    def name(self) -> str:
        """Name with everything that determines the shadow data."""
        return f"loss on a noisy tenth of the last client {_examples(self.full)}"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the loss of the model after the round."""
        shadow, federation = shadow_data(self.full, "noisy"), seen.federation
        metrics = evaluate(
            federation.learner.model, federation.layout, seen.models[0], shadow.x, shadow.y
        )
        return {"shadow_loss": metrics["loss"]}


study.probe("shadow loss")(ShadowLoss)


def _examples(config: Config) -> str:
    """What decides them, without what is at its default: an option that is learned later changes no cell's key."""
    return f"{json.dumps(config.data.differing(), sort_keys=True)} {config.seed}"


def shadow_data(config: Config, kind: str) -> Examples:
    """Return a tenth of the last client's training examples, which the paper's attacker holds."""
    return _shadow(config.data.model_dump_json(), config.seed, kind)


@lru_cache(maxsize=8)
def _shadow(text: str, seed: int, kind: str) -> Examples:
    dealt = deal_out(Data.model_validate_json(text), seed)
    rng = np.random.default_rng(keyed_seed("paper shadow", seed))
    held = shadow_of(dealt.clients[-1], kind, dealt.dataset, rng)
    return Examples(held.x, held.y, dealt.dataset.classes)


@study.measure("target loss")
def target_loss(outcomes: Sequence[Outcome], _argument: str = "") -> Value:
    """Loss of the new model on the attacker's tenth, without noise."""
    [outcome] = outcomes
    shadow = shadow_data(outcome.cell.config, "clean")
    return Value(float(cross_entropy(outputs(outcome, shadow).to(torch.float64), shadow.y)))


@study.measure("difference")
def difference(outcomes: Sequence[Outcome], _argument: str = "") -> Value:
    """Difference of target loss and aggregated loss, in percent of the larger one."""
    target, aggregated = target_loss(outcomes, "").value, final(outcomes, "loss").value
    if not math.isfinite(target) or target <= 0:
        return Value(math.nan)  # the noise overflowed the loss, or there is none left
    return Value(single_shot("", target, aggregated).point)


@study.measure("attack AUC")
def attack_auc(outcomes: Sequence[Outcome], _argument: str = "") -> Value:
    """AUC of the rounds with the target against those without."""
    inside, outside = ([-loss for loss in o.series("shadow_loss")] for o in outcomes)
    area = multi_round("", inside, outside).auc
    return Value(area.point, interval=(area.low, area.high), unit=UNIT)


@cache
def registry() -> Mapping[str, tuple[str, Grouping]]:
    """Every distance that metric privacy can be given, by name; a grouping that changes nothing is left out."""
    probe = Layout.from_shapes(
        {"a.weight": (2, 2), "a.bias": (2,), "b.weight": (1, 2), "b.bias": (1,)}
    )
    distances: dict[str, tuple[str, Grouping]] = {}
    for metric, groups_of in DISTANCES.items():
        if metric == COSINE:  # which takes no models
            continue
        distances[metric] = (metric, "array")
        if groups_of(probe, "module") != groups_of(probe, "array"):
            distances[f"{metric}, modules"] = (metric, "module")
    return distances


def disagreement(models: Tensor, layout: Layout, module: nn.Module, x: Tensor) -> float:
    """Largest share of examples [N, ...] on which two of the models [n, d] predict different classes."""
    said = [predict(module, layout, model, x).argmax(1) for model in models]
    largest = 0.0
    for one, other in combinations(said, 2):
        share = (one != other).double().mean()
        largest = max(largest, float(share))
    return largest


def divergences(models: Tensor, layout: Layout, module: nn.Module, x: Tensor) -> dict[str, float]:
    """Compute every distance between the models [n, d], and their disagreement on x."""
    distances = {}
    for name, (metric, grouping) in registry().items():
        distances[name] = max_pairwise_distance(models, layout, grouping, metric)
    distances[DISAGREEMENT] = disagreement(models, layout, module, x)
    return distances


@dataclass(frozen=True)
class Divergence:
    """Probe of the distances between clients' models, after every round and before aggregation.

    Parameters
    ----------
    full : Config
        Configuration of the scenario; its test half has the examples for disagreement.
    """

    full: Config

    @property
    def name(self) -> str:
        """Name with everything that determines the examples."""
        return f"{', '.join(self.figures)} on the test half {_examples(self.full)}"

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of every distance, and of the disagreement."""
        return (*registry(), DISAGREEMENT)

    @cached_property
    def examples(self) -> Examples:
        """Examples on which models may disagree."""
        return test_half(self.full)

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the figures of the models that the clients sent."""
        sent = [r.value for replies in seen.received.values() for r in replies if r.kind == "model"]
        federation = seen.federation
        return divergences(
            torch.stack(sent), federation.layout, federation.learner.model, self.examples.x
        )


study.probe("distances")(Divergence)


def _series(outcomes: Sequence[Outcome], name: str) -> list[float]:
    if name == DECAY:
        return [1 / round_ for round_ in range(1, len(outcomes[0].rows) + 1)]
    return outcomes[0].series(name)


@study.measure("mean d")
def mean_distance(outcomes: Sequence[Outcome], name: str) -> Value:
    """Mean distance over the rounds."""
    return Value(fmean(_series(outcomes, name)))


@study.measure("first d")
def first_distance(outcomes: Sequence[Outcome], name: str) -> Value:
    """Distance in the first round; the Euclidean one is the clip that the paper suggests."""
    return Value(_series(outcomes, name)[0])


@study.measure("last / first")
def last_over_first(outcomes: Sequence[Outcome], name: str) -> Value:
    """Distance in the last round over that in the first."""
    values = _series(outcomes, name)
    if not values[0]:
        return Value(math.nan)
    return Value(values[-1] / values[0])


@study.measure("rank")
def rank_with_disagreement(outcomes: Sequence[Outcome], name: str) -> Value:
    """Rank correlation of the distance with the disagreement over the rounds."""
    return Value(rank_correlation(_series(outcomes, name), _series(outcomes, DISAGREEMENT)))


@study.measure("rank of changes")
def rank_of_changes(outcomes: Sequence[Outcome], name: str) -> Value:
    """Rank correlation of changes from round to round, which a common downward trend does not affect."""
    return Value(correlation_of_changes(_series(outcomes, name), _series(outcomes, DISAGREEMENT)))


@study.curve("relative")
def relative(outcomes: Sequence[Outcome], name: str) -> Curve:
    """Distance relative to its mean over the rounds."""
    values = _series(outcomes, name)
    mean = fmean(values) or 1.0
    rounds = range(1, len(values) + 1)
    return Curve(list(map(float, rounds)), [value / mean for value in values])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN if either sequence is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan
    return float(spearmanr(first, second).statistic)


def correlation_of_changes(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of the changes from each value to the next."""
    moves = [after - before for before, after in pairwise(first)]
    others = [after - before for before, after in pairwise(second)]
    return rank_correlation(moves, others)
