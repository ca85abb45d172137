"""Clients and server of a run in one process.

`Cohort` is the courier between them: it asks clients, trains those that take part, and has each protect its releases.
`ObservedServer` opens and combines the rounds. It also warns the experimenter of problems that no deployed party could
see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch
from torch import Tensor

from fedveil.aggregation import RunningSum
from fedveil.engines.answers import Collected
from fedveil.engines.assembly import client_facts, client_releases, require_success
from fedveil.engines.memory import require_room
from fedveil.engines.parties import Parties
from fedveil.engines.party import COMBINE, SERVER
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.warning import Warnings
from fedveil.errors import FieldError, NoReplyError
from fedveil.learning import ClientData, WorkerTrainer
from fedveil.learning.learner import Learned, Learner, Task
from fedveil.learning.local import Trained
from fedveil.learning.streams import Key
from fedveil.mechanisms import begin_normals
from fedveil.methods import Broadcast, Refusal, Releases, TrustedServer, running_sum
from fedveil.secure import PublicKey


@dataclass(frozen=True, eq=False)
class Asked:
    """Cohort of a round after each client was asked, and before any client trains.

    Attributes
    ----------
    broadcast : Broadcast
        Broadcast that all clients received.
    cohort : sequence of int
        Partitions of all asked clients.
    partitions : list of int
        Partitions of the clients that train.
    task : Task
        Training of these clients.
    refused : dict of int to str
        Clients that declined, with the reason.
    answered : dict of int to Releases
        Clients that need not train, because they answered this round before, or their process died in it.
    """

    broadcast: Broadcast
    cohort: Sequence[int]
    partitions: Sequence[int]
    task: Task
    refused: Mapping[int, str]
    answered: Mapping[int, Releases] = field(default_factory=dict)


class Cohort:
    """Courier in one process: asks clients, trains those that take part, and has each protect its releases.

    Parameters
    ----------
    parties : Parties
        Parties of all clients.
    server : ServerParty
        Server; its state decides whether models may be added on arrival.
    warnings : Warnings
        Receiver of warnings about the training.
    lookers : sequence
        Probes that read single models; if there are any, all models are kept.
    workers : int
        Number of training threads; with several, the server's noise is drawn in parallel.

    Attributes
    ----------
    asked : Asked, optional
        Last cohort, as it was asked.
    local : bool
        Whether clients protect themselves, because the server is not trusted.
    """

    def __init__(
        self,
        parties: Parties,
        *,
        server: ServerParty,
        warnings: Warnings,
        lookers: Sequence[object],
        workers: int,
    ) -> None:
        self.parties, self._server, self._warnings = parties, server, warnings
        self._lookers, self._workers = lookers, workers
        self._method = parties.method
        self.local = self._method.client.trust != "central"
        self.asked: Asked | None = None
        self._learned: Sequence[Learned | Exception] | None = None

    def reach(self, number: int, cohort: Sequence[int]) -> dict[int, PublicKey | None]:
        """Return the whole cohort with their public keys for a secure sum (else None); all clients can be reached."""
        keys = self.parties.site_keys.roster(cohort)
        if not keys:
            return dict.fromkeys(cohort)
        return dict(zip(cohort, keys, strict=True))

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Ask a cohort, and prepare the training of the clients that take part.

        Raises
        ------
        FieldError
            If their models do not fit into memory.
        """
        self._require_room(broadcast, len(partitions))
        admitted: list[int] = []
        refused: dict[int, str] = {}
        answered: dict[int, Releases] = {}
        verdicts = self.admit(broadcast, partitions)
        for partition in partitions:
            verdict = verdicts.get(partition)
            if verdict is None:
                admitted.append(partition)
            elif isinstance(verdict, Refusal):
                refused[partition] = verdict.reason
            else:
                answered[partition] = verdict
        if (
            self.parties.site_keys and refused
        ):  # if a client is missing from a sum, no client trains
            admitted = []
        task = self._training(broadcast, admitted)
        self.asked, self._learned = (
            Asked(broadcast, partitions, admitted, task, refused, answered),
            None,
        )

    def _training(self, broadcast: Broadcast, admitted: Sequence[int]) -> Task:
        """Make the training task of the admitted clients."""
        parties, round_ = self.parties, broadcast.public.round
        keys = [(parties.seed, round_, partition) for partition in admitted]
        data = [self.training_data(partition, round_) for partition in admitted]
        sources = []
        if self._method.noisy is not None:
            sources = [parties.party(partition).training_source(round_) for partition in admitted]
        return Task(broadcast.models, data, keys, self._method.client.needs, sources)

    @property
    def task(self) -> Task:
        """Training task of the cohort that was asked last."""
        assert self.asked is not None  # a cohort was asked
        return self.asked.task

    def learned(self, outcomes: Sequence[Learned | Exception]) -> None:
        """Receive the results of the cohort's training, if it was trained together with other federations."""
        self._learned = outcomes

    def collect(self) -> Collected:
        """Train the clients that take part, and have each protect its releases."""
        assert self.asked is not None  # a cohort was asked
        asked, learned = self.asked, self._learned
        if learned is None:
            asked = self._adding(asked)
            learned = self._trained(asked.task)
        self.parties.keep_buffers(asked.partitions, learned)
        answers = Collected(
            dict(asked.answered),
            refused=dict(asked.refused),
            trained=asked.partitions,
            loss=_median_loss(learned),
            asked=len(asked.cohort),
        )
        for partition in asked.answered:
            answers.seals[partition] = self._seal(partition, asked.broadcast)
        if isinstance(asked.task.then, Adding):
            answers = replace(answers, added=asked.task.then.end())
        self.answer(asked, dict(zip(asked.partitions, learned, strict=True)), answers)
        if self.local:  # under central trust the server looks at what arrives
            self._look_at(asked, learned, answers)
        return answers

    def _require_room(self, broadcast: Broadcast, clients: int) -> None:
        """Refuse a round whose models do not fit into memory, before any client is asked or charged."""
        try:
            require_room(clients, broadcast.models, self._method.server)
        except FieldError:
            if not self._adds(broadcast, clients):
                raise

    def _adds(self, broadcast: Broadcast, clients: int) -> bool:
        """Whether the models of this many clients would be added to a sum on arrival."""
        if not self._alone():
            return False
        cohort, state = broadcast.public.cohort, self._server.state
        counts = torch.ones(clients, dtype=torch.float64)
        return (
            running_sum(self._method.server, broadcast.models[0], counts, cohort, state) is not None
        )

    def again(self, answers: Collected) -> list[int]:
        """Return the clients to ask again after an incomplete secure sum, as a sum opens only if all asked clients answer.

        If some clients refused, these are all that did not refuse; else those that replied.
        """
        assert self.asked is not None  # a cohort was asked
        asked = self.asked
        if not self.parties.site_keys:
            return []
        if asked.refused:
            left = [p for p in asked.cohort if p not in answers.refused]
        else:
            left = [p for p in asked.cohort if p in answers.replies]
        if len(left) == len(asked.cohort):
            return []
        self.parties.require_sum(asked.broadcast.public.round, asked.cohort, asked.refused, left)
        return left

    def admit(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> dict[int, Refusal | Releases | None]:
        """Ask each client before data are touched; see `ClientParty.admit`."""
        return self.parties.admit(broadcast, cohort)

    def records(self, partition: int) -> bool:
        """Whether a client's ledger records its releases."""
        return True

    def training_data(self, partition: int, round_: int) -> ClientData:
        """Return the data that a client trains on."""
        return self.parties.data[partition]

    def may_add(self, asked: Asked) -> bool:
        """Whether models may be added on arrival: all clients train one by one, send their models, and no probe looks."""
        return self._alone() and not asked.answered

    def _alone(self) -> bool:
        """Whether clients train one by one and send their models, and no probe looks at single models."""
        learner = self.parties.learner
        one_by_one = type(learner) is Learner and isinstance(learner.trainer, WorkerTrainer)
        as_trained = type(self._method.client) is TrustedServer
        return one_by_one and as_trained and not self._lookers

    def answer(
        self, asked: Asked, outcomes: Mapping[int, Learned | Exception], answers: Collected
    ) -> None:
        """Add the reply of each client that trained, from its result in `outcomes` (by partition), to the answers."""
        for partition, outcome in outcomes.items():
            self.reply(partition, outcome, asked.broadcast, answers)

    def reply(
        self, partition: int, outcome: Learned | Exception, broadcast: Broadcast, answers: Collected
    ) -> None:
        """Add one client's reply, or the reason why there is none."""
        party, failure = self.parties.party(partition), None
        try:
            if isinstance(outcome, Exception):
                answers.replies[partition] = party.fail(broadcast, outcome)
            else:
                facts = client_facts(broadcast, self.parties.layout, outcome)
                answers.replies[partition] = party.release(client_releases(outcome), facts)
                failure = outcome.trained.failure
        except Exception as error:  # one client's failure must not end the round
            answers.failed[partition] = _named(error)
            return
        answers.seals[partition] = self._seal(partition, broadcast)
        if self.local:
            answers.scales[partition] = party.ledger.entries[-1].spend.scale
        failure = party.failure or failure
        if failure is not None:
            answers.zeroed[partition] = _named(failure)

    def _seal(self, partition: int, broadcast: Broadcast) -> str:
        """Return the seal of a client's answer."""
        return self.parties.party(partition).seal(broadcast.public.round)

    def _trained(self, task: Task) -> Sequence[Learned | Exception]:
        learner = self.parties.learner
        if not task.clients:
            return []
        if task.then is not None:
            return learner.learn_together([task])[0]
        return learner.learn(task.models, task.clients, task.keys, task.needs, task.sources)

    def _adding(self, asked: Asked) -> Asked:
        """Add each model to the sum directly after its training, if the server side needs only the sum."""
        if not self.may_add(asked):
            return asked
        task, public = asked.task, asked.broadcast.public
        counts = torch.tensor([client.examples for client in task.clients], dtype=torch.float64)
        server = self._method.server
        running = running_sum(
            server, asked.broadcast.models[0], counts, public.cohort, self._server.state
        )
        if running is None:
            return asked
        if self._workers > 1:
            begin_normals(
                self.parties.source, self.parties.layout.size, SERVER, public.round, COMBINE, 0
            )
        return replace(asked, task=replace(task, then=Adding(running, asked.partitions)))

    def _look_at(
        self, asked: Asked, learned: Sequence[Learned | Exception], answers: Collected
    ) -> None:
        """Warn of problems that only clients could see; in one process the experimenter may look at each client."""
        models = [one.model for one in _with_examples(learned)]
        if not models:
            return
        kind = str(self.parties.learner.local.loss)
        length = self._warnings.trained(
            asked.broadcast.models[0], models, answers.loss or 0.0, kind
        )
        if self._method.noisy is None:
            self._warnings.protected(list(answers.scales.values()), len(answers.replies), length)


class Adding:
    """Callback that adds a client's model to the round's sum when its training ends, and drops the model.

    Parameters
    ----------
    running : RunningSum
        Sum over the clients in this order.
    partitions : sequence of int
        Partitions of all clients that train.
    """

    def __init__(self, running: RunningSum, partitions: Sequence[int]) -> None:
        self.running = running
        self._open = {partition: place for place, partition in enumerate(partitions)}

    def __call__(self, key: Key, outcome: Trained | Exception) -> Trained | Exception:
        """Add the model of the client with this key to the sum. One that cannot be added is kept, and the server refuses it."""
        place = self._open.pop(key[2])
        if isinstance(outcome, Exception):
            self.running.take(place, None)
            return outcome
        try:
            self.running.take(place, outcome.model)
        except FieldError:
            return replace(
                outcome, model=outcome.model.clone()
            )  # the next client is trained in the same memory
        return replace(outcome, model=torch.empty(0))

    def end(self) -> RunningSum:
        """Close the sum over the models that have arrived, and return it."""
        for place in self._open.values():
            self.running.take(place, None)
        return self.running


class ObservedServer:
    """Server of a run in one process that also warns the experimenter of likely problems.

    Parameters
    ----------
    server : ServerParty
        Server that opens and combines the rounds.
    parties : Parties
        Parties of all clients; if no client is left, their ledgers give the reason.
    warnings : Warnings
        Receiver of warnings.
    """

    def __init__(self, server: ServerParty, parties: Parties, warnings: Warnings) -> None:
        self._server, self._parties, self._warnings = server, parties, warnings

    def require_unsummed(self, round_: int) -> None:
        """See `ServerParty.require_unsummed`."""
        self._server.require_unsummed(round_)

    def open(
        self,
        models: Tensor,
        round_: int,
        rounds: int,
        cohort: int,
        roster: Sequence[PublicKey] = (),
        attempt: int = 0,
    ) -> Broadcast:
        """Warn about the plan, and open a round; see `ServerParty.open`."""
        self._warnings.planned(rounds, cohort)
        broadcast = self._server.open(models, round_, rounds, cohort, roster, attempt)
        return self._server.receipted(broadcast)

    def asked(self, answers: Collected) -> None:
        """Do nothing, as the clients' ledgers are in this process."""

    def close(self, broadcast: Broadcast, answers: Collected) -> tuple[Tensor, Round]:
        """Combine a round and warn about the replies; see `ServerParty.combine`."""
        require_success(broadcast.public.round, answers.trained, answers.zeroed)
        report = dict[str, float]()
        arrived = list(answers.replies.values())  # `combine` drops its replies if it fails
        try:
            opened, log = self._server.combine(broadcast, answers)
            report = dict(log.report)
        except NoReplyError as error:
            raise self._parties.used_up(answers.refused, error) from error
        finally:
            kind = "" if answers.loss is None else str(self._parties.learner.local.loss)
            self._warnings.combined(broadcast.models[0], arrived, report, answers.loss or 0.0, kind)
        return opened.models, log


def _with_examples(learned: Sequence[Learned | Exception]) -> list[Trained]:
    """Return the training results of clients that have at least one example."""
    own = [one.trained for one in learned if isinstance(one, Learned)]
    return [trained for trained in own if trained.examples]


def _median_loss(learned: Sequence[Learned | Exception]) -> float | None:
    losses = [trained.loss for trained in _with_examples(learned)]
    return median(losses) if losses else None


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
