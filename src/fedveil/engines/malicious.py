"""Malicious clients in experiments: a behaviour changes a client's data or the model that it sends.

A behaviour belongs to a partition: ``Federation(..., behaviours={3: LabelFlip(...)})``. In each round it gets its
client's data before training, and its `Turn` after training. The client's method still protects its answer, as on a
node with compromised data or training code but an intact privacy mod. With `bypass` the whole client is malicious: the
server gets its answer unprotected, and the client's ledger and budget mean nothing. A label flip overrides `data`; a
crafted vector overrides `model` and returns ``turn.start + vector``.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.checks import Parameters
from fedveil.engines.answers import Collected
from fedveil.engines.assembly import client_releases
from fedveil.engines.embedded import Asked, Cohort
from fedveil.engines.parties import Parties
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.learning.learner import Learned
from fedveil.learning.streams import Key
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Refusal, Releases

Train = Callable[[Broadcast, ClientData, Key, frozenset[str], Sequence[Source]], Learned]


@dataclass(frozen=True, eq=False)
class Turn:
    """Knowledge of a malicious client when it decides what to send.

    Attributes
    ----------
    partition : int
        Partition of the client.
    broadcast : Broadcast
        Broadcast of the round: the hypotheses [k, d], and the round (``broadcast.public.round``).
    chosen : int
        Index of the hypothesis that the client trained.
    trained : Tensor
        [d], model that the client trained on the data of its behaviour.
    fellows : tuple of int
        Partitions of all malicious clients in this round's cohort, with its own.
    honest : Tensor
        [h, d], updates (model - start) of the round's honest clients before any protection, ascending by partition.
        Empty [0, d] unless the behaviour is `omniscient`.
    released : Tensor
        [h, d], the same updates after protection, as the server receives them. Empty [0, d] unless `omniscient`.

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
        """Model [d] with which the client's training began."""
        return self.broadcast.models[self.chosen]

    @property
    def update(self) -> Tensor:
        """Change of the model by training, [d]."""
        return self.trained - self.start


class Behaviour(Parameters):
    """Behaviour of a malicious client; this base class behaves honestly.

    Attributes
    ----------
    omniscient : bool
        Whether the client sees the honest updates of the round.
    bypass : bool
        Whether the client skips its method's protection; under Flower such a node claims to run the privacy mod.

    Examples
    --------
    >>> class Reversed(fv.Behaviour):
    ...     def model(self, turn):
    ...         return turn.broadcast.models[turn.chosen] - (
    ...             turn.trained - turn.broadcast.models[turn.chosen]
    ...         )
    >>> run = fv.Federation(model=model, clients=clients, behaviours={2: Reversed()}).run(1)
    >>> run.rounds[0].round.used  # nobody notices
    (0, 1, 2)
    """

    omniscient: ClassVar[bool] = False
    bypass: bool = False

    def __init__(self, *, bypass: bool | None = None) -> None:
        if bypass is not None:  # otherwise the class sets it
            object.__setattr__(self, "bypass", bypass)  # subclasses may be frozen

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        """Return the data on which the client trains in a round (from 1), in place of its own. Called in each of its rounds."""
        return data

    def model(self, turn: Turn) -> Tensor | None:
        """Return the model [d] that the client sends in place of the trained one; None to send the trained one."""
        return None


def crafted(
    behaviour: Behaviour,
    partition: int,
    broadcast: Broadcast,
    learned: Learned,
    fellows: Sequence[int] = (),
    others: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Call a malicious client's behaviour after its training, and return the model [d] that it sends.

    Parameters
    ----------
    fellows, others
        ``Turn.fellows``, and ``(Turn.honest, Turn.released)``.

    Raises
    ------
    FieldError
        If the behaviour returns anything but a model of the broadcast's shape and type.
    """
    trained = learned.trained.model
    if others is None:
        others = trained.new_zeros(0, len(trained)), trained.new_zeros(0, len(trained))
    model = behaviour.model(
        Turn(partition, broadcast, learned.chosen, trained, tuple(fellows), *others)
    )
    if model is None:
        return trained
    if model.shape != trained.shape or model.dtype != trained.dtype:
        given = (tuple(model.shape), model.dtype)
        raise FieldError(
            f"{type(behaviour).__name__}.model", given, f"must be as trained: {trained.dtype}"
        )
    return model


def honest_updates(
    broadcast: Broadcast, learned: Mapping[int, Learned], sent: Mapping[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return ``(Turn.honest, Turn.released)``: updates of the honest clients that sent a model, before and after protection."""
    trained, released = [], []
    for partition in sorted(sent):
        if partition in learned:
            start = broadcast.models[learned[partition].chosen]
            trained.append(learned[partition].trained.model - start)
            released.append(sent[partition] - start)
    if not trained:
        nobody = broadcast.models.new_zeros(0, broadcast.models.shape[1])
        return nobody, nobody
    return torch.stack(trained), torch.stack(released)


class MaliciousCohort(Cohort):
    """Cohort with malicious clients; they act after the honest ones have answered.

    Parameters
    ----------
    parties : Parties
        Parties of all clients.
    behaviours : mapping of int to Behaviour
        Behaviours of the malicious clients, by partition.
    """

    def __init__(
        self, parties: Parties, behaviours: Mapping[int, Behaviour], **options: Any
    ) -> None:
        super().__init__(parties, **options)
        self._behaviours = dict(behaviours)
        for partition in self._behaviours:
            if not isinstance(partition, int) or not 0 <= partition < len(parties.data):
                raise FieldError(
                    "behaviours", partition, f"there are partitions 0 to {len(parties.data) - 1}"
                )

    def records(self, partition: int) -> bool:
        behaviour = self._behaviours.get(partition)
        return behaviour is None or not behaviour.bypass

    def admit(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> dict[int, Refusal | Releases | None]:
        return super().admit(
            broadcast, [partition for partition in cohort if self.records(partition)]
        )

    def training_data(self, partition: int, round_: int) -> ClientData:
        data = super().training_data(partition, round_)
        if partition not in self._behaviours:
            return data
        return self._behaviours[partition].data(data, partition, round_)

    def may_add(self, asked: Asked) -> bool:
        return super().may_add(asked) and self._behaviours.keys().isdisjoint(asked.partitions)

    def answer(
        self, asked: Asked, outcomes: Mapping[int, Learned | Exception], answers: Collected
    ) -> None:
        honest = {
            partition: one
            for partition, one in outcomes.items()
            if partition not in self._behaviours
        }
        super().answer(asked, honest, answers)
        fellows = [partition for partition in outcomes if partition in self._behaviours]
        seen = None
        if any(self._behaviours[partition].omniscient for partition in fellows):
            seen = _honest_updates(asked.broadcast, honest, answers.replies)
        for partition in fellows:
            outcome, behaviour = outcomes[partition], self._behaviours[partition]
            known = seen if behaviour.omniscient else None
            try:
                if isinstance(outcome, Learned):
                    outcome = _with_crafted(
                        behaviour, partition, asked.broadcast, outcome, fellows, known
                    )
            except Exception as error:  # an error in the attack is a failed client like any other
                outcome = error
            if behaviour.bypass:
                self._bypass(partition, outcome, answers)
                answers.seals[partition] = self._own_seal(partition, asked.broadcast)
            else:
                self.reply(partition, outcome, asked.broadcast, answers)

    def _own_seal(self, partition: int, broadcast: Broadcast) -> str:
        """Make up a seal that belongs to no ledger line."""
        made = f"bypass {self.parties.seed} {broadcast.public.round} {partition}"
        return hashlib.sha256(made.encode()).hexdigest()

    def _bypass(self, partition: int, outcome: Learned | Exception, answers: Collected) -> None:
        """Send the trained model unprotected; under local trust without the count and metrics, which no server expects."""
        if isinstance(outcome, Exception):
            answers.failed[partition] = f"{type(outcome).__name__}: {outcome}"
        else:
            releases = client_releases(outcome)
            answers.replies[partition] = releases[:1] if self.local else releases


def _honest_updates(
    broadcast: Broadcast,
    outcomes: Mapping[int, Learned | Exception],
    replies: Mapping[int, Releases],
) -> tuple[Tensor, Tensor]:
    """Return the updates of a round's honest clients, before protection and as they were sent."""
    trained = {
        partition: outcome
        for partition, outcome in outcomes.items()
        if isinstance(outcome, Learned)
    }
    sent: dict[int, Tensor] = {}
    for partition, reply in replies.items():
        model = model_of(reply)
        if model is not None:
            sent[partition] = model
    return honest_updates(broadcast, trained, sent)


class Collusion:
    """Knowledge that a round's malicious clients share, about each other and the honest ones, in a simulation.

    The honest clients have to answer first.
    """

    def __init__(self) -> None:
        self._broadcast: Broadcast | None = None
        self._fellows: tuple[int, ...] = ()
        self._learned: dict[int, Learned] = {}
        self._sent: Callable[[int], Tensor | None] = lambda partition: None

    def begin(
        self,
        broadcast: Broadcast,
        fellows: Sequence[int],
        sent: Callable[[int], Tensor | None],
    ) -> None:
        """Begin a round; `sent` is a function that returns the model [d] sent by an honest client, or None."""
        self._broadcast, self._fellows, self._sent = broadcast, tuple(fellows), sent
        self._learned.clear()

    def learned(self, partition: int, learned: Learned) -> None:
        """Record the result of an honest client's training."""
        self._learned[partition] = learned

    def fellows_of(self, partition: int) -> tuple[int, ...]:
        """Return the malicious clients asked in this round, with this one."""
        return self._fellows or (partition,)

    def seen(self) -> tuple[Tensor, Tensor] | None:
        """Return ``(Turn.honest, Turn.released)``; None before the first round."""
        if self._broadcast is None:
            return None
        sent = {}
        for partition in self._learned:
            model = self._sent(partition)
            if model is not None:
                sent[partition] = model
        return honest_updates(self._broadcast, self._learned, sent)


def behaving(
    train: Train, behaviours: Mapping[int, Behaviour], collusion: Collusion | None = None
) -> Train:
    """Wrap a function that trains single clients: malicious clients then follow their behaviours.

    Without a collusion each malicious client knows only itself.
    """
    known = Collusion() if collusion is None else collusion

    def trained(
        broadcast: Broadcast,
        data: ClientData,
        key: Key,
        needs: frozenset[str],
        sources: Sequence[Source],
    ) -> Learned:
        partition = key[2]
        if partition not in behaviours:
            learned = train(broadcast, data, key, needs, sources)
            known.learned(partition, learned)
            return learned
        behaviour = behaviours[partition]
        learned = train(broadcast, behaviour.data(data, partition, key[1]), key, needs, sources)
        seen = known.seen() if behaviour.omniscient else None
        fellows = known.fellows_of(partition)
        return _with_crafted(behaviour, partition, broadcast, learned, fellows, seen)

    return trained


def _with_crafted(
    behaviour: Behaviour,
    partition: int,
    broadcast: Broadcast,
    learned: Learned,
    fellows: Sequence[int],
    others: tuple[Tensor, Tensor] | None = None,
) -> Learned:
    model = crafted(behaviour, partition, broadcast, learned, fellows, others)
    return replace(learned, trained=replace(learned.trained, model=model))
