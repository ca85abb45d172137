"""Probes: an experimenter's measurements of each finished round.

``Evaluation(probes=[MyProbe()])`` calls the probes after each round. Their figures are in the round's record,
``RoundRecord.figures``. A probe is the experimenter's instrument and may see everything, private values too. So its
figures are not protected, and no party may act on them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from fedveil.engines.history import RoundRecord
from fedveil.engines.server import ServerParty
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData
from fedveil.learning.learner import Learner
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Releases


class Watched(Protocol):
    """Interface of a federation for probes, the same under every engine."""

    @property
    def clients(self) -> Sequence[ClientData]:
        """Data of the clients, by partition."""

    @property
    def learner(self) -> Learner:
        """Learner, with the model and the options of training."""

    @property
    def layout(self) -> Layout:
        """Layout of the model's vector."""

    @property
    def server(self) -> ServerParty:
        """Server, with its state and its training on public data."""

    @property
    def source(self) -> Source:
        """Randomness of the noise."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Finished round, as the argument of a probe.

    Attributes
    ----------
    federation : Watched
        Federation after the round: its clients, learner (with the model), layout and server.
    broadcast : Broadcast
        Broadcast of the round: the hypotheses [k, d] and the public facts.
    received : mapping of int to Releases
        Protected releases that arrived at the server, by partition; also unusable ones.
    models : Tensor
        [k, d], models of the next broadcast.
    record : RoundRecord
        Record of the round, without figures of probes.

    Examples
    --------
    >>> from fedveil_lab.attacks import ServerView
    >>> view = ServerView()
    >>> _ = fv.Federation(
    ...     model=model, clients=clients, evaluation=fv.Evaluation(probes=[view])
    ... ).run(1)
    >>> len(view.received)
    3
    """

    federation: Watched
    broadcast: Broadcast
    received: Mapping[int, Releases]
    models: Tensor
    record: RoundRecord


class Probe(Protocol):
    """Interface of probes: a probe measures each round, and may keep tensors for an attack in memory.

    Attributes
    ----------
    name : str
        Complete name of the measurement. Two probes with the same name count as the same measurement in a grid of runs.
    figures : collection of str
        Names of the returned figures, the same in every round; empty for a probe that only keeps tensors.

    Examples
    --------
    >>> class Length:
    ...     name, figures = "length of the step", ("step",)
    ...
    ...     def __call__(self, seen):
    ...         return {"step": float((seen.models - seen.broadcast.models).norm())}
    >>> run = fv.Federation(
    ...     model=model, clients=clients, evaluation=fv.Evaluation(probes=[Length()])
    ... ).run(1)
    >>> list(run.rounds[0].figures)
    ['step']
    """

    @property
    def name(self) -> str:
        """Complete name of the measurement."""

    @property
    def figures(self) -> Collection[str]:
        """Names of the returned figures."""

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Measure a round, and return the figures by name."""


def probed(probes: Sequence[Probe], seen: Seen) -> RoundRecord:
    """Call all probes, and return the round's record with their figures.

    Raises
    ------
    FieldError
        If a probe returns other figures than it names, or two probes return a figure of the same name.
    """
    figures: dict[str, float] = {}
    for probe in probes:
        given = dict(probe(seen))
        if set(given) != set(probe.figures):
            raise FieldError(
                f"probe {probe.name!r}", sorted(given), f"must return {sorted(probe.figures)}"
            )
        for twice in sorted(given.keys() & figures.keys()):
            raise FieldError(
                f"probe {probe.name!r}",
                twice,
                "another probe of this run returns a figure of that name",
            )
        figures |= {name: float(value) for name, value in given.items()}
    return replace(seen.record, figures=figures) if probes else seen.record
