"""Tables 10 to 13 and E.16 to E.19: client inference, with the paper's statistics from `fedveil.attacks.paper`.

The attacker is the first of three clients, the target the last. Single shot: one round of 20 epochs, and the loss of
the new model on a tenth of the target's training images beside the aggregated loss. Multi-round: one run with the
target and one without, and the loss on that tenth with noise after every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from fedveil.attacks.paper import multi_round, single_shot
from fedveil.engines import Federation
from fedveil.experiments import Config
from fedveil.experiments.dealing import deal_out
from fedveil.experiments.replicates_data import shadow_of
from fedveil.experiments.sections import Data
from fedveil.learning import evaluate
from fedveil.learning.losses import cross_entropy
from fedveil.mechanisms import keyed_seed
from fedveil.reproduce.cells import Cell, Outcome
from fedveil.reproduce.measure import Entry, Replicate, Value
from fedveil.reproduce.metric_privacy.accuracy import Printed, last_rounds, tested
from fedveil.reproduce.metric_privacy.plan import SETTINGS, Plan
from fedveil.reproduce.models import Examples, outputs

SCENARIO = "cia"
SINGLE = {"10": "fedavg", "11": "fedopt", "E16": "fedavgm", "E17": "fedmedian", "E18": "fedprox", "E19": "fedyogi"}
MULTI = "fedavg"  # the only rule of table 13
UNIT = "bootstrap over the rounds of one pair of runs, as printed; rounds are not independent"
OVER_SEEDS = "over the rounds of one pair of runs, as printed, once for each seed; the interval is over seeds"


@dataclass(frozen=True)
class ShadowLoss:
    """Loss of the released model on what the attacker holds of the target's data, after every round.

    Parameters
    ----------
    full : Config
        The scenario with the target, whichever world is run.
    """

    full: Config

    figures: ClassVar[tuple[str, ...]] = ("shadow_loss",)

    @property
    def name(self) -> str:
        """With what decides the shadow data."""
        return f"loss on a noisy tenth of the last client {self.full.data.model_dump_json()} {self.full.seed}"

    def __call__(self, federation: Federation) -> Mapping[str, float]:
        """Of the model after the last finished round."""
        shadow = shadow_data(self.full, "noisy")
        learner = federation.learner
        loss = evaluate(learner.model, federation.layout, federation.models[0], shadow.x, shadow.y).loss
        return {"shadow_loss": float("nan") if loss is None else loss}


def shadow_data(config: Config, kind: str) -> Examples:
    """A tenth of the last client's training examples, as the paper's attacker holds them."""
    return _shadow(config.data.model_dump_json(), config.seed, kind)


def single_entries(plan: Plan, printed: Printed, table: str) -> list[Entry]:
    """Tables 10, 11 and E.16 to E.19: two losses, and their difference in percent of the larger."""
    rule = SINGLE[table]
    label = plan.label(rule)
    figures: dict[str, Callable[[Sequence[Outcome]], Value]] = {
        "aggregated loss": _aggregated,
        "target loss": _target,
        "difference": _difference,
    }
    return [
        Entry(label, s, figure, _draws(plan, rule, s), measure, printed.get((table, label, s, figure)))
        for figure, measure in figures.items()
        for s in SETTINGS
    ]


def test_loss_entries(plan: Plan, printed: Printed) -> list[Entry]:
    """Table 12: the loss on the server's test half after that one round; the accuracy says whether it learned."""
    return [
        Entry(label, s, figure, _draws(plan, rule, s), tested(name), printed.get(("12", label, s, figure)))
        for figure, name in (("test loss", "loss"), ("accuracy", "accuracy"))
        for rule, label in ((r, plan.label(r)) for r in plan.rules)
        for s in SETTINGS
    ]


def multi_entries(plan: Plan, printed: Printed) -> list[Entry]:
    """Table 13: the attack's area under the ROC curve, and accuracy and F1 in both worlds."""
    label = plan.label(MULTI)
    entries = []
    for s in SETTINGS:
        pairs = tuple(Replicate(seed, _worlds(plan, s, seed)) for seed in plan.seeds)
        ins, outs = (tuple(Replicate(r.seed, (r.cells[i],)) for r in pairs) for i in (0, 1))
        measures = (
            ("attack AUC", pairs, _attack),
            ("accuracy, target in", ins, last_rounds("accuracy")),
            ("accuracy, target out", outs, last_rounds("accuracy")),
            ("F1, target in", ins, last_rounds("f1")),
            ("F1, target out", outs, last_rounds("f1")),
        )
        entries += [Entry(label, s, f, reps, m, printed.get(("13", label, s, f))) for f, reps, m in measures]
    return entries


def _draws(plan: Plan, rule: str, setting: str) -> tuple[Replicate, ...]:
    """One round under every seed, with several draws of the noise where there is noise."""
    draws = 1 if setting == "vanilla" else plan.choices.draws
    return tuple(
        Replicate(seed, (plan.cell(SCENARIO, rule, setting, seed, draw=draw, single=True),), draw)
        for seed in plan.seeds
        for draw in range(draws)
    )


def _worlds(plan: Plan, setting: str, seed: int) -> tuple[Cell, Cell]:
    """The run with the target, and the one without."""
    watcher = ShadowLoss(plan.full(SCENARIO, seed))
    inside = plan.cell(SCENARIO, MULTI, setting, seed, watcher=watcher)
    return inside, plan.cell(SCENARIO, MULTI, setting, seed, without_target=True, watcher=watcher)


def _aggregated(outcomes: Sequence[Outcome]) -> Value:
    return Value(float(outcomes[0].summary.values["metrics"]["loss"]))


def _target(outcomes: Sequence[Outcome]) -> Value:
    [outcome] = outcomes
    shadow = shadow_data(outcome.cell.config, "clean")
    return Value(float(cross_entropy(outputs(outcome, shadow).to(torch.float64), shadow.y)))


def _difference(outcomes: Sequence[Outcome]) -> Value:
    target, aggregated = _target(outcomes).value, _aggregated(outcomes).value
    if not (math.isfinite(target) and target > 0):  # the noise overflowed the loss, or there is none left
        return Value(math.nan)
    return Value(single_shot("", target, aggregated).difference)


def _attack(outcomes: Sequence[Outcome]) -> Value:
    inside, outside = ([-row["watched"]["shadow_loss"] for row in o.summary.rows] for o in outcomes)
    found = multi_round("", inside, outside).auc
    return Value(found.point, interval=(found.low, found.high), unit=UNIT)


@lru_cache(maxsize=8)
def _shadow(text: str, seed: int, kind: str) -> Examples:
    dealt = deal_out(Data.model_validate_json(text), seed)
    rng = np.random.default_rng(keyed_seed("paper shadow", seed))
    held = shadow_of(dealt.clients[-1], kind, dealt.dataset, rng)
    return Examples(held.x, held.y, dealt.dataset.classes)
