"""The clients of one process as a round's courier: who takes part, what they train, and what each protects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch

from fedveil.aggregation import RunningSum
from fedveil.engines.assembly import client_facts, client_releases
from fedveil.engines.parties import Parties
from fedveil.engines.party import COMBINE, SERVER
from fedveil.engines.rounds import Collected
from fedveil.engines.server import ServerParty
from fedveil.engines.warning import Warnings
from fedveil.errors import FieldError
from fedveil.learning import ClientData, WorkerTrainer
from fedveil.learning.learner import Learned, Learner, Task
from fedveil.learning.local import Trained
from fedveil.learning.streams import Key
from fedveil.mechanisms import begin_normals
from fedveil.methods import Broadcast, Refusal, Releases, TrustedServer, running_sum
from fedveil.secure import PublicKey


@dataclass(frozen=True, eq=False)
class Asked:
    """A cohort that was asked, before anybody trains.

    Attributes
    ----------
    broadcast : Broadcast
        What everybody received.
    cohort : sequence of int
        All that were asked.
    partitions : list of int
        Those of them that train.
    task : Task
        What they are to train.
    refused : dict of int to str
        Clients that declined, with the reason.
    answered : dict of int to Releases
        Clients that need not train: the round was answered before, or their process died in it.
    """

    broadcast: Broadcast
    cohort: Sequence[int]
    partitions: Sequence[int]
    task: Task
    refused: Mapping[int, str]
    answered: Mapping[int, Releases] = field(default_factory=dict)


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


class Cohort:
    """Asks clients of this process, trains those that take part, and lets each protect what it sends.

    Parameters
    ----------
    parties : Parties
        All clients.
    server : ServerParty
        Whose state says whether models may be added as they come.
    warnings : Warnings
        Told what is odd about the training.
    lookers : sequence
        Who looks at single models; while there is somebody, all are kept.
    workers : int
        Threads that train; beside several, the server's noise is drawn.

    Attributes
    ----------
    asked : Asked, optional
        The cohort that was asked last.
    local : bool
        Whether clients protect themselves.
    """

    def __init__(
        self, parties: Parties, *, server: ServerParty, warnings: Warnings, lookers: Sequence[object], workers: int
    ) -> None:
        self.parties, self._server, self._warnings = parties, server, warnings
        self._lookers, self._workers = lookers, workers
        self._method = parties.method
        self.local = self._method.client.trust != "central"
        self.asked: Asked | None = None
        self._learned: Sequence[Learned | Exception] | None = None

    def reach(self, number: int, cohort: Sequence[int]) -> dict[int, PublicKey | None]:
        """All of them."""
        keys = self.parties.site_keys.roster(cohort)
        return dict(zip(cohort, keys, strict=True)) if keys else dict.fromkeys(cohort)

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Ask a cohort who takes part, and say what those who do are to train."""
        parties, round_ = self.parties, broadcast.public.round
        verdicts = self.admit(broadcast, partitions)
        refused = {p: verdict.reason for p, verdict in verdicts.items() if isinstance(verdict, Refusal)}
        answered = {p: v for p, v in verdicts.items() if v is not None and not isinstance(v, Refusal)}
        admitted = [p for p in partitions if verdicts.get(p) is None]
        if parties.site_keys and refused:  # of a sum that somebody is missing from, nobody trains
            admitted = []
        keys = [(parties.seed, round_, partition) for partition in admitted]
        data = [self.training_data(partition, round_) for partition in admitted]
        sources = [parties.party(p).training_source(round_) for p in admitted] if self._method.noisy else []
        task = Task(broadcast.models, data, keys, self._method.client.needs, sources)
        self.asked, self._learned = Asked(broadcast, partitions, admitted, task, refused, answered), None

    @property
    def task(self) -> Task:
        """What those who were asked last are to train."""
        assert self.asked is not None  # somebody was asked
        return self.asked.task

    def learned(self, outcomes: Sequence[Learned | Exception]) -> None:
        """Take what those asked have trained, where others were trained in the same call."""
        self._learned = outcomes

    def collect(self) -> Collected:
        """Train those who take part, and let each protect what it sends."""
        assert self.asked is not None  # somebody was asked
        asked, learned = self.asked, self._learned
        if learned is None:
            asked = self._adding(asked)
            learned = self._trained(asked.task)
        self.parties.take_over(asked.partitions, learned)
        then = asked.task.then
        answers = Collected(
            dict(asked.answered),
            refused=dict(asked.refused),
            added=then.end() if isinstance(then, Adding) else None,
            trained=asked.partitions,
            loss=_median_loss(learned),
        )
        self.answer(asked, dict(zip(asked.partitions, learned, strict=True)), answers)
        if self.local:  # else the server looks at what arrives
            self._look_at(asked, learned, answers)
        return answers

    def again(self, answers: Collected) -> list[int]:
        """Those who are left of a secure sum that somebody is missing from: a sum is of all who are asked."""
        assert self.asked is not None  # somebody was asked
        asked = self.asked
        if not self.parties.site_keys:
            return []
        gone = answers.refused if asked.refused else {p: "" for p in asked.cohort if p not in answers.replies}
        left = [p for p in asked.cohort if p not in gone]
        if len(left) == len(asked.cohort):
            return []
        self.parties.require_sum(asked.broadcast.public.round, asked.cohort, asked.refused, left)
        return left

    def admit(self, broadcast: Broadcast, cohort: Sequence[int]) -> dict[int, Refusal | Releases | None]:
        """What each answers before data are touched; see `ClientParty.admit`."""
        return self.parties.admit(broadcast, cohort)

    def records(self, partition: int) -> bool:
        """Whether a client's ledger says what it released."""
        return True

    def training_data(self, partition: int, round_: int) -> ClientData:
        """What a client trains on."""
        return self.parties.data[partition]

    def may_add(self, asked: Asked) -> bool:
        """Whether nobody looks at the model of any client: all train, one by one, and send what they trained."""
        learner = self.parties.learner
        alone = type(learner) is Learner and isinstance(learner.trainer, WorkerTrainer)
        return alone and not self._lookers and type(self._method.client) is TrustedServer and not asked.answered

    def answer(self, asked: Asked, outcomes: Mapping[int, Learned | Exception], answers: Collected) -> None:
        """Add what each client that was to train sends, by partition."""
        for partition, outcome in outcomes.items():
            self.reply(partition, outcome, asked.broadcast, answers)

    def reply(self, partition: int, outcome: Learned | Exception, broadcast: Broadcast, answers: Collected) -> None:
        """Add one client's reply, or why there is none."""
        party, failure = self.parties.party(partition), None
        try:
            if isinstance(outcome, Exception):
                answers.replies[partition] = party.fail(broadcast, outcome)
            else:
                facts = client_facts(broadcast, self.parties.layout, outcome)
                answers.replies[partition] = party.release(client_releases(outcome), facts)
                failure = outcome.trained.failure
        except Exception as error:  # one client's failure must not end the round
            answers.failed[partition] = f"{type(error).__name__}: {error}"
            return
        if self.local:
            answers.scales[partition] = party.ledger.entries[-1].spend.scale
        failure = party.failure or failure
        if failure is not None:
            answers.zeroed[partition] = f"{type(failure).__name__}: {failure}"

    def _trained(self, task: Task) -> Sequence[Learned | Exception]:
        learner = self.parties.learner
        if not task.clients:
            return []
        if task.then is not None:
            return learner.learn_together([task])[0]
        return learner.learn(task.models, task.clients, task.keys, task.needs, task.sources)

    def _adding(self, asked: Asked) -> Asked:
        """The same cohort; what is trained is added at once, where the server's side needs no more of it."""
        if not self.may_add(asked):
            return asked
        task, public = asked.task, asked.broadcast.public
        counts = torch.tensor([client.examples for client in task.clients], dtype=torch.float64)
        server = self._method.server
        running = running_sum(server, asked.broadcast.models[0], counts, public.cohort, self._server.state)
        if running is None:
            return asked
        if self._workers > 1:
            begin_normals(self.parties.source, self.parties.layout.size, SERVER, public.round, COMBINE, 0)
        return replace(asked, task=replace(task, then=Adding(running, asked.partitions)))

    def _look_at(self, asked: Asked, learned: Sequence[Learned | Exception], answers: Collected) -> None:
        """Warn of what clients would see alone: the experimenter, who holds every client, may look at each."""
        models = [o.trained.model for o in learned if isinstance(o, Learned) and o.trained.examples]
        if not models:
            return
        kind = str(self.parties.learner.local.loss)
        length = self._warnings.trained(asked.broadcast.models[0], models, answers.loss or 0.0, kind)
        if self._method.noisy is None:
            self._warnings.protected(list(answers.scales.values()), len(answers.replies), length)


def _median_loss(learned: Sequence[Learned | Exception]) -> float | None:
    losses = [o.trained.loss for o in learned if isinstance(o, Learned) and o.trained.examples]
    return median(losses) if losses else None
