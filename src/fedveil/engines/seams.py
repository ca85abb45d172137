"""Probes: what an experimenter measures of each finished round, or keeps of it.

``Evaluation(probes=[MyProbe()])`` shows each finished round to its probes; what they return stands in the round's
record, ``RoundRecord.figures``. A probe is the experimenter's instrument: it may see everything, so its figures are
no releases, and nothing that a party does may follow from them.
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
    """Parts of a federation that a probe finds, under every engine."""

    @property
    def clients(self) -> Sequence[ClientData]:
        """By partition."""

    @property
    def learner(self) -> Learner:
        """With the model, and how clients train."""

    @property
    def layout(self) -> Layout:
        """Layout of the model's vector."""

    @property
    def server(self) -> ServerParty:
        """With its state, and its public tutor."""

    @property
    def source(self) -> Source:
        """Randomness of the noise."""


@dataclass(frozen=True, eq=False)
class Seen:
    """One finished round.

    Attributes
    ----------
    federation : Watched
        After the round; its clients, learner (with the model), layout and server.
    broadcast : Broadcast
        What opened the round: the hypotheses [k, d] and the public facts.
    received : mapping of int to Releases
        What arrived at the server, by partition, after every protection; unusable replies too.
    models : Tensor
        [k, d], what the server broadcasts next.
    record : RoundRecord
        The round's figures, those of probes left out.

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
    """Probe that measures a round, and may keep tensors of it for an attack. Tensors it keeps do not outlive the process.

    Attributes
    ----------
    name : str
        What is measured, completely: two probes of one name measure the same. Part of a cell's key.
    figures : collection of str
        Names of what it returns, in every round; empty for one that only keeps.

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
        """Complete name of what is measured."""

    @property
    def figures(self) -> Collection[str]:
        """Names of what it returns."""

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """The figures of a round."""


def probed(probes: Sequence[Probe], seen: Seen) -> RoundRecord:
    """The round's record with the figures of all probes.

    Raises
    ------
    FieldError
        If a probe returns other figures than it names, or two return one of the same name.
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
