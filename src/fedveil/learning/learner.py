"""A client's work on a broadcast before its method protects the result: choose a model, train it, score its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args

import torch
from torch import Tensor, nn

from fedveil.errors import require_a, require_choice
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.evaluation import choose_each
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.scores import Region
from fedveil.learning.scoring import LayerScorer, Scoring, Unmarked
from fedveil.learning.streams import Key
from fedveil.learning.trainers import Then, WorkerTrainer, make_trainer
from fedveil.mechanisms import Source


class Trainer(Protocol):
    """Interface of trainers: they train many clients, each from its own start; see `SequentialTrainer`."""

    def train(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
    ) -> list[Trained | Exception]:
        """Train each client; a failed client has an exception in its place."""


@dataclass(frozen=True, eq=False)
class Learned:
    """Result of one client's training, still unprotected: the input to its method.

    Attributes
    ----------
    trained : Trained
        Trained model, number of examples, and loss.
    chosen : int
        Index of the hypothesis from which training started.
    layer_scores : dict of str to float, optional
        Score S_l of each layer of the start on the client's sensitive region, if the method needs it.
    """

    trained: Trained
    chosen: int = 0
    layer_scores: dict[str, float] | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Training task of one round: the broadcast models, the clients, and what their method needs.

    Attributes
    ----------
    models : Tensor
        [k, d], broadcast models.
    clients, keys : sequence
        n clients with their keys (seed, round, partition).
    needs : frozenset of str
        Requirements of the method: ``layer_scores``, ``noisy_steps``, or none.
    sources : sequence of Source
        Randomness of the noise inside training (``noisy_steps``), one source for each client.
    then : callable, optional
        Called with a client's key and result when its training ends, if clients are trained one by one. Its return
        value replaces the result. It must keep no reference to the model, as the next client is trained in the same
        memory.
    """

    models: Tensor
    clients: Sequence[ClientData]
    keys: Sequence[Key]
    needs: frozenset[str] = frozenset()
    sources: Sequence[Source] = ()
    then: Then | None = None


class Learner:
    """Model, training options and trainer of the clients, for any engine.

    Parameters
    ----------
    model : torch.nn.Module
        Architecture; its parameter values do not matter.
    layout : Layout
        Layout of the model.
    local : LocalTraining
        Options of a client's training.
    region : Region, optional
        Privacy-sensitive pixels of every image, for methods that need layer scores. A client whose data have masks is
        scored on these instead.
    scoring : Scoring, optional
        Options of layer scores.
    unmarked : mapping of int to str, optional
        For single clients, by partition: a value that replaces `Scoring.unmarked`.
    trainer : Trainer, optional
        Trainer; by default chosen by `make_trainer`.
    device : str
        Device for training.

    Examples
    --------
    >>> learner = fv.Learner(model, fv.Layout.from_module(model), fv.LocalTraining(lr=0.1))
    >>> start = learner.layout.read(model)[None]
    >>> [learned] = learner.learn(start, [fv.ClientData(*clients[0])], [(0, 1, 0)], frozenset(), [])
    >>> learned.trained.examples
    40
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        local: LocalTraining,
        *,
        region: Region | None = None,
        scoring: Scoring | None = None,
        unmarked: Mapping[int, str] | None = None,
        trainer: Trainer | None = None,
        device: str = "cpu",
    ) -> None:
        require_a("model", model, nn.Module, "must be a torch.nn.Module that was built: Net()")
        require_a("layout", layout, Layout, "must be a Layout: Layout.from_module(model)")
        require_a("local", local, LocalTraining, "must be LocalTraining(...)")
        if scoring is not None:
            require_a("scoring", scoring, Scoring, "must be a Scoring")
        if unmarked is not None:
            require_a("unmarked", unmarked, Mapping, "must be a Mapping")
        self.model = model
        self.layout = layout
        self.local = local
        self.region = region
        self.scoring = scoring or Scoring()
        self.unmarked = dict(unmarked or {})
        for partition, choice in self.unmarked.items():
            require_choice(f"unmarked[{partition}]", choice, get_args(Unmarked))
        self.trainer = trainer or make_trainer(model, layout, local, device=device)

    @property
    def private_trainer(self) -> PrivateTrainer | None:
        """Trainer if it adds noise inside training; else None."""
        return self.trainer if isinstance(self.trainer, PrivateTrainer) else None

    def learn(
        self,
        models: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
        needs: frozenset[str] = frozenset(),
        sources: Sequence[Source] = (),
    ) -> list[Learned | Exception]:
        """For each client: choose the best broadcast model, train it, and score its layers if the method needs scores.

        Parameters
        ----------
        models : Tensor
            [k, d], broadcast models.
        clients, keys : sequence
            n clients with their keys (seed, round, partition).
        needs, sources
            See `Task`.

        Returns
        -------
        list of Learned or Exception
            Results in the order of the clients; an exception for a client that failed.
        """
        task = Task(models, clients, keys, needs, sources)
        [learned] = self.learn_together([task])
        return learned

    def learn_together(self, tasks: Sequence[Task]) -> list[list[Learned | Exception]]:
        """Train the clients of several federations in one call of the trainer; results are those of `learn` for each task."""
        prepared = [self._prepare(task) for task in tasks]
        work = _Work()
        for task, ready in zip(tasks, prepared, strict=True):
            models = task.models.unbind()
            for i, one in enumerate(ready):
                if isinstance(one, Exception):
                    continue
                work.starts.append(models[one.chosen])
                work.clients.append(task.clients[i])
                work.keys.append(task.keys[i])
                if task.sources:
                    work.sources.append(task.sources[i])
        outcomes = iter(self._train(work, tasks[0].then) if work.starts else ())
        learned: list[list[Learned | Exception]] = []
        for ready in prepared:
            own: list[Learned | Exception] = []
            for one in ready:
                own.append(one if isinstance(one, Exception) else one.learned(next(outcomes)))
            learned.append(own)
        return learned

    def _train(self, work: "_Work", then: Then | None) -> list[Trained | Exception]:
        """Train all clients in one call of the trainer."""
        starts = _stacked(work.starts)
        if isinstance(self.trainer, PrivateTrainer):
            return self.trainer.train_noisily(starts, work.clients, work.keys, work.sources)
        if isinstance(self.trainer, WorkerTrainer):
            return self.trainer.train(starts, work.clients, work.keys, then)
        return self.trainer.train(starts, work.clients, work.keys)

    def _prepare(self, task: Task) -> "list[_Prepared | Exception]":
        """Choose each client's start, and score its layers if the method needs scores."""
        chosen = choose_each(self.model, self.layout, task.models, task.clients, self.local.loss)
        needed = "layer_scores" in task.needs
        prepared: list[_Prepared | Exception] = []
        for client, key, choice in zip(task.clients, task.keys, chosen, strict=True):
            if isinstance(choice, Exception):
                prepared.append(choice)
                continue
            is_scored = needed and (key[1] - 1) % self.scoring.every == 0
            try:
                scores = (
                    self.scorer.of_client(task.models[choice], client, key) if is_scored else None
                )
                prepared.append(_Prepared(choice, scores))
            except Exception as error:  # a client's failure must not end the others
                prepared.append(error)
        return prepared

    @property
    def scorer(self) -> LayerScorer:
        """Scorer of layers, with this learner's model, loss and region."""
        return LayerScorer(
            self.model, self.layout, self.local.loss, self.region, self.scoring, self.unmarked
        )

    def public_scores(self, models: Tensor, public: ClientData) -> Tensor:
        """Compute the layer scores [n, L] of n received models on public data, for a method's `ServerFact`."""
        return self.scorer.of_models(models, public)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Start that a client chose, with layer scores if the method needs them."""

    chosen: int
    scores: dict[str, float] | None

    def learned(self, outcome: Trained | Exception) -> Learned | Exception:
        """Return the method's input from the trainer's result; an exception stays one."""
        if isinstance(outcome, Exception):
            return outcome
        return Learned(outcome, self.chosen, self.scores)


@dataclass(eq=False)
class _Work:
    """Clients of all tasks that are trained together, in the order of the tasks."""

    starts: list[Tensor] = field(default_factory=list)
    clients: list[ClientData] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows to [n, d]; no copy is made if all clients start from the same model."""
    first = rows[0]
    if all(row.data_ptr() == first.data_ptr() for row in rows):
        return first.expand(len(rows), -1)
    return torch.stack(list(rows))
