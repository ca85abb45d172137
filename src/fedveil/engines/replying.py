"""What a cohort sends: each client's release after its protection, and what malicious ones make of theirs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from fedveil.accounting import model_of
from fedveil.aggregation import RunningSum
from fedveil.engines.assembly import client_facts, client_releases
from fedveil.engines.history import Asked, Collected
from fedveil.engines.members import Members
from fedveil.engines.seams import Behaviour, crafted, honest_updates
from fedveil.errors import FieldError
from fedveil.learning import ClientData, WorkerTrainer
from fedveil.learning.learner import Learned, Learner, Task
from fedveil.learning.local import Trained
from fedveil.learning.streams import Key
from fedveil.methods import Broadcast, Refusal, Releases, TrustedServer, running_sum


class Adding:
    """Adds what a client trained to the round's sum when its training ends, and lets nothing of the model go on.

    Parameters
    ----------
    running : RunningSum
        Of the clients in this order.
    partitions : sequence of int
        Of all who train.
    """

    def __init__(self, running: RunningSum, partitions: Sequence[int]) -> None:
        self.running = running
        self._open = {partition: place for place, partition in enumerate(partitions)}

    def __call__(self, key: Key, outcome: Trained | Exception) -> Trained | Exception:
        """Take one client's, by its key; a model that no sum takes goes on, for the server to refuse."""
        place = self._open.pop(key[2])
        if isinstance(outcome, Exception):
            self.running.take(place, None)
            return outcome
        try:
            self.running.take(place, outcome.model)
        except FieldError:
            return replace(outcome, model=outcome.model.clone())  # the next client is trained in its memory
        return replace(outcome, model=torch.empty(0))

    def end(self) -> RunningSum:
        """The sum of those who came; nobody is waited for any longer."""
        for place in self._open.values():
            self.running.take(place, None)
        return self.running


class Replying:
    """The clients' half of a round in one process.

    Parameters
    ----------
    members : Members
        All clients.
    behaviours : mapping of int to Behaviour
        Malicious ones, by partition.
    """

    def __init__(self, members: Members, behaviours: Mapping[int, Behaviour]) -> None:
        self._members, self._method, self.behaviours = members, members.method, behaviours

    def ask(self, broadcast: Broadcast, cohort: Sequence[int], began: float) -> Asked:
        """Ask a cohort who takes part, and say what those who do are to train."""
        members, round_ = self._members, broadcast.public.round
        verdicts = members.admit(broadcast, [p for p in cohort if not self.bypasses(p)])
        admitted = [p for p in cohort if verdicts.get(p) is None]
        refused = {p: verdict.reason for p, verdict in verdicts.items() if isinstance(verdict, Refusal)}
        answered = {p: v for p, v in verdicts.items() if v is not None and not isinstance(v, Refusal)}
        keys = [(members.seed, round_, partition) for partition in admitted]
        data = [self.training_data(partition, round_) for partition in admitted]
        sources = [members.party(p).training_source(round_) for p in admitted] if self._method.noisy else []
        task = Task(broadcast.models, data, keys, self._method.client.needs, sources)
        return Asked(broadcast, admitted, task, refused, began, answered, tuple(cohort))

    def collect(self, asked: Asked, learned: Sequence[Learned | Exception]) -> Collected:
        """Let the clients that trained (in the order of `asked.partitions`) protect what they send."""
        self._members.take_over(asked, learned)
        losses = [o.trained.loss for o in learned if isinstance(o, Learned) and o.trained.examples]
        collected = self._sent(asked, learned)
        return replace(collected, loss=median(losses)) if losses else collected

    def _sent(self, asked: Asked, learned: Sequence[Learned | Exception]) -> Collected:
        adding, replies = asked.task.then, dict(asked.answered)
        collected = Collected(replies, added=adding.end() if isinstance(adding, Adding) else None)
        outcomes = dict(zip(asked.partitions, learned, strict=True))
        fellows = [p for p in asked.partitions if p in self.behaviours]
        for partition in asked.partitions:
            if partition not in self.behaviours:
                self._reply(partition, outcomes[partition], asked.broadcast, replies, collected)
        others = None
        if any(self.behaviours[p].omniscient for p in fellows):
            trained = {p: o for p, o in outcomes.items() if isinstance(o, Learned) and p not in self.behaviours}
            sent = {p: m for p, r in replies.items() if (m := model_of(r)) is not None}
            others = honest_updates(asked.broadcast, trained, sent)
        for partition in fellows:
            outcome, behaviour = outcomes[partition], self.behaviours[partition]
            try:
                if isinstance(outcome, Learned):
                    known = others if behaviour.omniscient else None
                    model = crafted(behaviour, partition, asked.broadcast, outcome, fellows, known)
                    outcome = replace(outcome, trained=replace(outcome.trained, model=model))
            except Exception as error:  # a fault of the attack's is a failed client like any other
                outcome = error
            self._reply(partition, outcome, asked.broadcast, replies, collected)
        return collected

    def adding(self, asked: Asked, state: Any) -> Asked:
        """The same round; what is trained is added at once, where a server's side in this state needs no more."""
        task, start, learner = asked.task, asked.broadcast.models[0], self._members.learner
        alone = type(learner) is Learner and isinstance(learner.trainer, WorkerTrainer)
        identity = type(self._method.client) is TrustedServer and not asked.answered
        if not (alone and identity and self.behaviours.keys().isdisjoint(asked.partitions)):
            return asked
        counts = torch.tensor([client.examples for client in task.clients], dtype=torch.float64)
        running = running_sum(self._method.server, start, counts, asked.broadcast.public.cohort, state)
        if running is None:
            return asked
        return replace(asked, task=replace(task, then=Adding(running, asked.partitions)))

    def _reply(
        self,
        partition: int,
        outcome: Learned | Exception,
        broadcast: Broadcast,
        replies: dict[int, Releases],
        collected: Collected,
    ) -> None:
        """Add one client's reply, or why there is none."""
        party, bypass = self._members.party(partition), self.bypasses(partition)
        local = self._method.client.trust != "central"
        try:
            if isinstance(outcome, Exception):
                if bypass:
                    raise outcome
                replies[partition] = party.fail(broadcast, outcome)
            elif bypass:  # no other release is expected of a client under local trust
                replies[partition] = client_releases(outcome)[: 1 if local else None]
                return
            else:
                facts = client_facts(broadcast, self._members.layout, outcome)
                replies[partition] = party.release(client_releases(outcome), facts)
            if local:
                collected.scales[partition] = party.ledger.entries[-1].spend.scale
            own = outcome.trained.failure if isinstance(outcome, Learned) else None
            failure = party.failure or own
            if failure is not None:
                collected.zeroed[partition] = f"{type(failure).__name__}: {failure}"
        except Exception as error:  # one client's failure must not end the round
            collected.failed[partition] = f"{type(error).__name__}: {error}"

    def bypasses(self, partition: int) -> bool:
        """Whether a malicious client skips its own protection."""
        return partition in self.behaviours and self.behaviours[partition].bypass

    def training_data(self, partition: int, round_: int) -> ClientData:
        """What a client trains on: its own data, or what its behaviour makes of them."""
        data, behaviour = self._members.data[partition], self.behaviours.get(partition)
        return data if behaviour is None else behaviour.data(data, partition, round_)
