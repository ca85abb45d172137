"""A client's work on a broadcast before its method protects the result: choose, train, score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from fedveil.checks import Count, Parameters
from fedveil.errors import FieldError, require_a, require_choice
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.evaluation import choose_each
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.scores import Region, score_models
from fedveil.learning.streams import Key, stream
from fedveil.learning.trainers import Then, WorkerTrainer, make_trainer
from fedveil.mechanisms import Source


class Trainer(Protocol):
    """Trains clients from their own starts; see `SequentialTrainer`."""

    def train(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
    ) -> list[Trained | Exception]:
        """Train each client; an exception takes the place of a failed one."""


@dataclass(frozen=True, eq=False)
class Learned:
    """Result of one client's training, for its method; all of it is private.

    Attributes
    ----------
    trained : Trained
        Model, number of examples, loss.
    chosen : int
        The hypothesis it started from.
    layer_scores : dict of str to float, optional
        S_l of the start on the client's sensitive region, where the method needs it.
    """

    trained: Trained
    chosen: int = 0
    layer_scores: dict[str, float] | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Work of the clients of one round.

    Attributes
    ----------
    models : Tensor
        [k, d], the broadcast.
    clients, keys : sequence
        n clients with their keys (seed, round, partition).
    needs : frozenset of str
        ``layer_scores``, ``noisy_steps``, or nothing.
    sources : sequence of Source
        One a client, for ``noisy_steps``: the randomness of the noise inside training.
    then : callable, optional
        Called with a client's key and its result when its training ends, if clients are trained one by one. It returns
        what takes the result's place. It keeps nothing of the model: the next client is trained in the same memory.
    """

    models: Tensor
    clients: Sequence[ClientData]
    keys: Sequence[Key]
    needs: frozenset[str] = frozenset()
    sources: Sequence[Source] = ()
    then: Then | None = None


Unmarked = Literal["everything", "uniform", "refuse"]


@dataclass(frozen=True, kw_only=True)
class Scoring(Parameters):
    """Options for the scores of layers on a client's sensitive pixels, for FedRE.

    Parameters
    ----------
    images : int
        Images that are looked at; the paper takes ten of one format. A client is taken to have one format: the scores
        of these images stand for all of its images, for `every` rounds.
    every : int
        Rounds from one scoring to the next; in between a client uses its last scores. Above 1 everybody must take part
        in every round.
    draw : {"fixed", "anew"}
        The first ones that mark something, or others in every round.
    method : {"exact", "estimate", "signal"}
        As for `layer_scores`.
    probes : int
        Random directions of the estimate.
    unmarked : {"everything", "uniform", "refuse"}
        For a client that marks nothing: take every pixel as sensitive, split its budget evenly without scoring, or
        fail, which leaves noise alone. A client's own choice stands in ``[[privacy.clients]]``. Each layer's noise
        shows the server the split. An even split shows that the client marks nothing, or has failed.
    pixels : {"marked", "all"}
        "all" scores layers on whole images, whatever is marked, on the server too: the baseline without regions.
    """

    images: Count = 10
    draw: Literal["fixed", "anew"] = "fixed"
    method: Literal["exact", "estimate", "signal"] = "exact"
    probes: Count = 32
    unmarked: Unmarked = "everything"
    pixels: Literal["marked", "all"] = "marked"
    every: Count = 1


class Learner:
    """A model with a trainer and its options; the same under every engine.

    Parameters
    ----------
    model : torch.nn.Module
        The architecture; its parameter values do not matter.
    layout : Layout
        Of the model.
    local : LocalTraining
        What a client does.
    region : Region, optional
        The privacy-sensitive pixels of every image, for methods that need layer scores; a client whose data carry
        masks is scored on those.
    scoring : Scoring, optional
        How it is scored.
    unmarked : mapping of int to str, optional
        By partition, a client's own choice in place of `Scoring.unmarked`.
    trainer : Trainer, optional
        By default the one that `make_trainer` chooses.
    device : str
        Where to train.

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
        """The trainer, if it adds noise itself."""
        return self.trainer if isinstance(self.trainer, PrivateTrainer) else None

    def learn(
        self,
        models: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
        needs: frozenset[str] = frozenset(),
        sources: Sequence[Source] = (),
    ) -> list[Learned | Exception]:
        """Let clients choose a hypothesis, train it, and score layers if their method needs it.

        Parameters
        ----------
        models : Tensor
            [k, d], the broadcast.
        clients, keys : sequence
            n clients with their keys (seed, round, partition).
        needs, sources
            See `Task`.

        Returns
        -------
        list of Learned or Exception
            In the order of the clients.
        """
        task = Task(models, clients, keys, needs, sources)
        [learned] = self.learn_together([task])
        return learned

    def learn_together(self, tasks: Sequence[Task]) -> list[list[Learned | Exception]]:
        """Train the clients of several federations in one call of the trainer; each task as by `learn`."""
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
        """Return each client's hypothesis, and its layers' scores where the method needs them."""
        chosen = choose_each(self.model, self.layout, task.models, task.clients, self.local.loss)
        needed = "layer_scores" in task.needs
        prepared: list[_Prepared | Exception] = []
        for client, key, choice in zip(task.clients, task.keys, chosen, strict=True):
            if isinstance(choice, Exception):
                prepared.append(choice)
                continue
            is_scored = needed and (key[1] - 1) % self.scoring.every == 0
            try:
                scores = self._scores(task.models[choice], client, key) if is_scored else None
                prepared.append(_Prepared(choice, scores))
            except Exception as error:  # a client's failure is that client's alone
                prepared.append(error)
        return prepared

    def _scores(self, start: Tensor, client: ClientData, key: Key) -> dict[str, float]:
        """Return the scores of a client's layers, by name."""
        layers = self.layout.groups("module")
        choice = self.unmarked.get(key[2], self.scoring.unmarked)
        if choice == "uniform" and _marks_nothing(client, self.scoring):
            return dict.fromkeys(layers, 1.0)
        [scores] = self._score(start[None], client, key, choice)
        return dict(zip(layers, scores.tolist(), strict=True))

    def public_scores(self, models: Tensor, public: ClientData) -> Tensor:
        """Score the layers [n, L] of received models on public data: a ServerFact."""
        return self._score(models, public, None, self.scoring.unmarked)

    def _score(
        self,
        models: Tensor,
        data: ClientData,
        key: Key | None,
        unmarked: str,
    ) -> Tensor:
        """Return scores [n, L] on a few images with their sensitive pixels."""
        masks = data.masks
        region = self.region
        how = self.scoring
        images = data.x if data.x.dim() > 2 else data.x[:, None, None]  # features are a row of pixels
        if how.pixels == "all":
            masks = torch.ones(len(images), *images.shape[2:], dtype=torch.bool)
        if masks is None and region is None:
            accepted = "the method scores layers on a region: give (top, left, bottom, right), or data with masks"
            raise FieldError("region", None, accepted)
        if _marks_nothing(data, how):
            if unmarked == "refuse":
                owner = "the public set" if key is None else "the client"
                raise FieldError("masks", "empty", f"{owner} marks nothing as sensitive: mark something, or allow that")
            masks = images.new_ones(len(images), *images.shape[2:], dtype=torch.bool)
        rows = scored_rows(data, how, key)
        where = region if masks is None else masks[rows]
        assert where is not None
        return score_models(
            self.model,
            self.layout,
            self.local.loss,
            models,
            images[rows],
            data.y[rows],
            where,
            how.method,
            probes=how.probes,
        )


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A client's hypothesis, and its layers' scores where the method needs them."""

    chosen: int
    scores: dict[str, float] | None

    def learned(self, outcome: Trained | Exception) -> Learned | Exception:
        """Return what the method is given after training."""
        if isinstance(outcome, Exception):
            return outcome
        return Learned(outcome, self.chosen, self.scores)


@dataclass(eq=False)
class _Work:
    """Clients that are trained together, of one task after another."""

    starts: list[Tensor] = field(default_factory=list)
    clients: list[ClientData] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)


def scored_rows(data: ClientData, how: Scoring, key: Key | None = None) -> Tensor:
    """Choose the images of a client (with its key), or of the public set, that layers are scored on; ascending."""
    rows = torch.arange(len(data.x))
    if data.masks is not None and how.pixels == "marked" and data.masks.any():
        rows = data.masks.flatten(1).any(1).nonzero().reshape(-1)
    if how.draw == "anew" and key is not None:
        rows = rows[torch.randperm(len(rows), generator=stream(key, "scored images"))]
    return rows[: how.images].sort().values


def _marks_nothing(data: ClientData, how: Scoring) -> bool:
    if data.masks is None or how.pixels != "marked":
        return False
    return not bool(data.masks.any())


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Return [n, d]; without a copy where all clients start from the same model."""
    first = rows[0]
    if all(row.data_ptr() == first.data_ptr() for row in rows):
        return first.expand(len(rows), -1)
    return torch.stack(list(rows))
