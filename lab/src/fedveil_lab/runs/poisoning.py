"""Malicious clients of a run: who they are, what they do, and how well they succeed."""

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
    """Malicious clients of a run, and how their success is measured.

    Attributes
    ----------
    spec : Malicious
        Name of the behaviour, and whether clients act it out; if not, success is the clean rate.
    behaviour : Behaviour
        Behaviour of all malicious clients.
    clients : tuple of int
        Partitions of the malicious clients.
    held, relabelled : int
        Number of their training examples, and of examples that they relabel.
    measured_on : tuple or None
        Examples, their classes, and their name: "test half", or "held-out examples" if there is no test half.
    goal : Goal or None
        Examples that the attack wants misclassified.
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
        """Behaviours by partition, for `Federation`; empty if malicious clients do not act."""
        if not self.spec.acting:
            return {}
        return dict.fromkeys(self.clients, self.behaviour)

    def outnumbering(self, config: Config, n: int) -> list[str]:
        """Return a warning if more of `n` clients are malicious than a robust rule tolerates or was told."""
        if config.aggregator is None or not self.spec.acting:
            return []
        rule = config.aggregator.build()
        most = rule.withstands(n)
        borne = min(most, getattr(rule, "malicious", most))
        if not most or len(self.clients) <= borne:
            return []
        return [
            f"{len(self.clients)} of {n} clients are malicious, more than the {borne} that the rule is set to bear"
        ]

    def values(self, federation: Federation) -> dict[str, Any]:
        """Return ``success``, ``recall`` and ``accuracy`` of the last model for a summary, if there is one model only.

        ``unprotected`` means that malicious clients bypass the method of local protection, so no promise holds for
        them.
        """
        measured: dict[str, Any] = {
            "behaviour": self.spec.behaviour,
            "acting": self.spec.acting,
            "number": len(self.clients),
            "clients": list(self.clients),
            "examples": self.held,
            "relabelled": self.relabelled,
            "unprotected": self.spec.acting
            and self.behaviour.bypass
            and federation.method.client.trust != "central",
        }
        if self.measured_on is None or len(federation.models) != 1:
            return measured
        x, y, where = self.measured_on
        outcome = asdict(
            measure(
                federation.learner.model, federation.layout, federation.models[0], x, y, self.goal
            )
        )
        figures = {name: outcome[name] for name in ("success", "recall", "accuracy")}
        return {**measured, "measured_on": where, "goal_examples": outcome["examples"], **figures}


def poisoning_of(
    spec: Malicious, config: Config, dealt: Dealt, clients: list[ClientData]
) -> Poisoning:
    """Choose the malicious clients among those that train, and what they do.

    Raises
    ------
    FieldError
        If a key does not fit the data; the message names it.
    """
    dataset = dealt.dataset
    partitions = spec.who(len(clients), config.seed)
    if dataset.task == "classification":
        classes = dataset.classes
    else:
        classes = 0
    clip = config.privacy.options.get("clip")
    if not isinstance(clip, float):
        clip = None
    if config.aggregator is None:
        rule = None
    else:
        rule = config.aggregator.build()
    behaviour = spec.build(classes, dataset.class_names, config.seed, rule, clip)
    held = relabelled = 0
    measured_on = goal = None
    with fields_of("malicious"):
        for partition in partitions:
            own = clients[partition]
            changed = behaviour.data(own, partition, 1)
            held += own.examples
            if classes:
                relabelled += int((changed.y != own.y).sum())
        if classes:
            measured_on = _measured_on(dealt, clients)
        if measured_on is not None:
            x, y, _ = measured_on
            goal = goal_of(behaviour, x, y)
    return Poisoning(spec, behaviour, partitions, held, relabelled, measured_on, goal)


def _measured_on(dealt: Dealt, clients: list[ClientData]) -> tuple[Tensor, Tensor, str] | None:
    """Return examples, their classes and their name: the test half, or clients' held-out examples."""
    dataset = dealt.dataset
    if dataset.test_x is not None and dataset.test_y is not None:
        return dataset.test_x, dataset.test_y, "test half"
    xs, ys = [], []
    for client in clients:
        if client.test_x is not None and client.test_y is not None:
            xs.append(client.test_x)
            ys.append(client.test_y)
    if not xs:
        return None
    return torch.cat(xs), torch.cat(ys), "held-out examples"
