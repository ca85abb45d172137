"""Malicious clients of a run: who they are, what they do, and how far they got."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fedveil.engines import Behaviour, Federation
from fedveil.learning import ClientData
from fedveil_lab.attacks.poisoning import Goal, goal_of, measure
from fedveil_lab.config.adversaries import Malicious
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.tables import fields_of
from fedveil_lab.runs.deal import Dealt


@dataclass(frozen=True, eq=False)
class Poisoning:
    """Who is malicious, and what success is measured on.

    Attributes
    ----------
    spec : Malicious
        The behaviour's name, and whether they act; if not, success is the clean rate.
    behaviour : Behaviour
        That all of them share.
    clients : tuple of int
        Partitions.
    held, relabelled : int
        Training examples of theirs, and how many of them they give another class.
    measured_on : tuple or None
        Examples, their classes, and "test half", or "held-out examples" of the clients where the set has none.
    goal : Goal or None
        What the attack wants to be wrong.
    """

    spec: Malicious
    behaviour: Behaviour
    clients: tuple[int, ...]
    held: int
    relabelled: int
    measured_on: tuple[Tensor, Tensor, str] | None
    goal: Goal | None

    @property
    def behaviours(self) -> dict[int, Behaviour]:
        """For `Federation`."""
        return dict.fromkeys(self.clients, self.behaviour) if self.spec.acting else {}

    def outnumbering(self, config: Config, n: int) -> list[str]:
        """A line where more of n clients are malicious than a robust rule bears, or is told of."""
        rule = config.aggregator.build() if config.aggregator and self.spec.acting else None
        most = 0 if rule is None else rule.bears(n)
        borne = min(most, getattr(rule, "malicious", most))
        if not most or len(self.clients) <= borne:
            return []
        return [f"{len(self.clients)} of {n} clients are malicious, more than the {borne} that the rule is set to bear"]

    def values(self, federation: Federation) -> dict[str, Any]:
        """For a run's summary: ``success``, ``recall`` and ``accuracy`` of the last model, where there is only one.

        ``unprotected`` says that they go around the method by which clients protect themselves: no promise is theirs.
        """
        measured: dict[str, Any] = {
            "behaviour": self.spec.behaviour,
            "acting": self.spec.acting,
            "number": len(self.clients),
            "clients": list(self.clients),
            "examples": self.held,
            "relabelled": self.relabelled,
            "unprotected": self.spec.acting and self.behaviour.bypass and federation.method.client.trust != "central",
        }
        if self.measured_on is None or len(federation.models) != 1:
            return measured
        x, y, where = self.measured_on
        outcome = asdict(measure(federation.learner.model, federation.layout, federation.models[0], x, y, self.goal))
        figures = {name: outcome[name] for name in ("success", "recall", "accuracy")}
        return {**measured, "measured_on": where, "goal_examples": outcome["examples"], **figures}


def poisoning_of(spec: Malicious, config: Config, dealt: Dealt, clients: list[ClientData]) -> Poisoning:
    """Malicious clients among those that train.

    Raises
    ------
    FieldError
        Naming the key that does not fit the data.
    """
    dataset = dealt.dataset
    partitions = spec.who(len(clients), config.seed)
    classes = dataset.classes if dataset.task == "classification" else 0
    clip = config.privacy.options.get("clip")
    rule = config.aggregator.build() if config.aggregator else None
    behaviour = spec.build(classes, dataset.class_names, config.seed, rule, clip if isinstance(clip, float) else None)
    own = [clients[p] for p in partitions]
    with fields_of("malicious"):
        changed = [behaviour.data(c, p, 1) for p, c in zip(partitions, own, strict=True)]
        measured_on = _measured_on(dealt, clients) if classes else None
        goal = goal_of(behaviour, *measured_on[:2]) if measured_on else None
    relabelled = sum(int((a.y != b.y).sum()) for a, b in zip(changed, own, strict=True)) if classes else 0
    held = sum(c.examples for c in own)
    return Poisoning(spec, behaviour, partitions, held, relabelled, measured_on, goal)


def _measured_on(dealt: Dealt, clients: list[ClientData]) -> tuple[Tensor, Tensor, str] | None:
    dataset = dealt.dataset
    if dataset.test_x is not None and dataset.test_y is not None:
        return dataset.test_x, dataset.test_y, "test half"
    held = [(c.test_x, c.test_y) for c in clients if c.test_x is not None and c.test_y is not None]
    if not held:
        return None
    return torch.cat([x for x, _ in held]), torch.cat([y for _, y in held]), "held-out examples"
