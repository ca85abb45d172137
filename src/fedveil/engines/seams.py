"""Seams around a round: what a malicious client does, and what probes measure or keep.

A behaviour belongs to a partition: ``Federation(..., behaviours={3: LabelFlip(...)})``. In each round the engine hands
it its client's data before training, and its `Turn` after training. What it answers goes the honest way: the client's
method still protects it, as on a node whose data or training code is compromised and whose privacy mod is not. With
`bypass` the whole client is the adversary's: what it answers arrives at the server as it is, and no ledger or budget
of such a client says anything. A label flip overrides `data`; a crafted vector overrides `model` and returns
``turn.start + vector``.

``Evaluation(probes=[MyProbe()])`` shows each finished round to its probes; what they return stands in the round's
record, ``RoundRecord.figures``. A probe is the experimenter's instrument: it may see everything, so its figures are
no releases, and nothing that a party does may follow from them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedveil.checks import Parameters
from fedveil.engines.history import RoundRecord
from fedveil.engines.server import ServerParty
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData
from fedveil.learning.learner import Learned, Learner
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Releases


@dataclass(frozen=True, eq=False)
class Turn:
    """What a malicious client knows when it decides what to send.

    Attributes
    ----------
    partition : int
        Which client it is.
    broadcast : Broadcast
        What everybody received: the hypotheses [k, d], and the round (``broadcast.public.round``).
    chosen : int
        The hypothesis it trained.
    trained : Tensor
        [d], the model it trained, on the data that its behaviour gave it.
    fellows : tuple of int
        Partitions of all malicious clients in this round's cohort, itself included.
    honest : Tensor
        [h, d], the updates (model - start) that the honest clients of the round trained, before any protection,
        ascending by partition. Empty [0, d] unless the behaviour is `omniscient`.
    released : Tensor
        [h, d], the same as the server receives them, after protection. Empty [0, d] unless `omniscient`.

    Examples
    --------
    >>> class Silent(fv.Behaviour):
    ...     def model(self, turn: fv.Turn):
    ...         return turn.broadcast.models[turn.chosen]  # what it was sent
    >>> fv.Federation(model=model, clients=clients, behaviours={0: Silent()}).run(1).models.shape
    torch.Size([1, 10])
    """

    partition: int
    broadcast: Broadcast
    chosen: int
    trained: Tensor
    fellows: tuple[int, ...]
    honest: Tensor
    released: Tensor

    @property
    def start(self) -> Tensor:
        """The model [d] that training began from."""
        return self.broadcast.models[self.chosen]

    @property
    def update(self) -> Tensor:
        """What training changed, [d]."""
        return self.trained - self.start


class Behaviour(Parameters):
    """A malicious client; as it stands here, it does what an honest one does.

    Attributes
    ----------
    omniscient : bool
        Whether it is shown the honest updates of the round.
    bypass : bool
        Whether it leaves its method's protection out. Not under Flower, where such a node runs no privacy mod at all.

    Examples
    --------
    >>> class Reversed(fv.Behaviour):
    ...     def model(self, turn):
    ...         return turn.broadcast.models[turn.chosen] - (turn.trained - turn.broadcast.models[turn.chosen])
    >>> run = fv.Federation(model=model, clients=clients, behaviours={2: Reversed()}).run(1)
    >>> run.rounds[0].round.used  # nobody notices
    (0, 1, 2)
    """

    omniscient: ClassVar[bool] = False
    bypass: bool = False

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        """What it trains on in a round (counted from 1) instead of its data; called in every round it takes part in."""
        return data

    def model(self, turn: Turn) -> Tensor | None:
        """The model [d] it sends instead of the one it trained; None to send that one."""
        return None


def crafted(
    behaviour: Behaviour,
    partition: int,
    broadcast: Broadcast,
    learned: Learned,
    fellows: Sequence[int] = (),
    others: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The model [d] that a malicious client sends, after its training.

    Parameters
    ----------
    fellows, others
        ``Turn.fellows``, and ``(Turn.honest, Turn.released)``.

    Raises
    ------
    FieldError
        If what the behaviour returns is no model of the broadcast's shape and type.
    """
    trained = learned.trained.model
    nobody = trained.new_zeros(0, len(trained))
    known = (nobody, nobody) if others is None else others
    model = behaviour.model(Turn(partition, broadcast, learned.chosen, trained, tuple(fellows), *known))
    if model is None:
        return trained
    if model.shape != trained.shape or model.dtype != trained.dtype:
        given = (tuple(model.shape), model.dtype)
        raise FieldError(f"{type(behaviour).__name__}.model", given, f"must be as trained: {trained.dtype}")
    return model


def honest_updates(
    broadcast: Broadcast, learned: Mapping[int, Learned], sent: Mapping[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """``(Turn.honest, Turn.released)`` of the honest clients that sent a model."""
    honest = [p for p in sorted(sent) if p in learned]
    if not honest:
        nobody = broadcast.models.new_zeros(0, broadcast.models.shape[1])
        return nobody, nobody
    starts = torch.stack([broadcast.models[learned[p].chosen] for p in honest])
    trained, released = ([learned[p].trained.model for p in honest], [sent[p] for p in honest])
    return torch.stack(trained) - starts, torch.stack(released) - starts


class Watched(Protocol):
    """What a probe finds of the federation that is run, under every engine."""

    @property
    def clients(self) -> Sequence[ClientData]:
        """By partition."""

    @property
    def learner(self) -> Learner:
        """With the model, and how clients train."""

    @property
    def layout(self) -> Layout:
        """Of the model's vector."""

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
    >>> from fedveil.attacks import ServerView
    >>> view = ServerView()
    >>> _ = fv.Federation(model=model, clients=clients, evaluation=fv.Evaluation(probes=[view])).run(1)
    >>> len(view.received)
    3
    """

    federation: Watched
    broadcast: Broadcast
    received: Mapping[int, Releases]
    models: Tensor
    record: RoundRecord


class Probe(Protocol):
    """Measures a round, and may keep tensors of it for an attack. Tensors it keeps do not outlive the process.

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
    >>> run = fv.Federation(model=model, clients=clients, evaluation=fv.Evaluation(probes=[Length()])).run(1)
    >>> list(run.rounds[0].figures)
    ['step']
    """

    @property
    def name(self) -> str:
        """What is measured."""

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
            raise FieldError(f"probe {probe.name!r}", sorted(given), f"must return {sorted(probe.figures)}")
        for twice in sorted(given.keys() & figures.keys()):
            raise FieldError(f"probe {probe.name!r}", twice, "another probe of this run returns a figure of that name")
        figures |= {name: float(value) for name, value in given.items()}
    return replace(seen.record, figures=figures) if probes else seen.record
