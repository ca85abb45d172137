"""What a malicious client does: train on other data, or send another model than it trained.

A behaviour belongs to a partition: ``Federation(..., behaviours={3: LabelFlip(...)})``. In each round the engine hands
it its client's data before training, and its `Turn` after training. What it answers goes the honest way: the client's
method still protects it, as on a node whose data or training code is compromised and whose privacy mod is not. With
`bypass` the whole client is the adversary's: what it answers arrives at the server as it is, and no ledger or budget
of such a client says anything.

A label flip overrides `data`; a crafted vector overrides `model` and returns ``turn.start + vector``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.checks import Parameters
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.learning.learner import Learned
from fedveil.methods import Broadcast


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
        raise FieldError(
            f"{type(behaviour).__name__}.model", given, f"must be {tuple(trained.shape)} {trained.dtype}, or None"
        )
    return model


def honest_updates(
    broadcast: Broadcast, learned: Mapping[int, Learned], sent: Mapping[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """``(Turn.honest, Turn.released)`` of the honest clients that sent a model."""
    found = [p for p in sorted(sent) if p in learned]
    if not found:
        nobody = broadcast.models.new_zeros(0, broadcast.models.shape[1])
        return nobody, nobody
    starts = torch.stack([broadcast.models[learned[p].chosen] for p in found])
    return torch.stack([learned[p].trained.model for p in found]) - starts, torch.stack(
        [sent[p] for p in found]
    ) - starts
