"""What a client does with a broadcast before its method protects the result: choose, train, score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    def train(self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> list[Trained | Exception]:
        """Train each client; an exception takes the place of a failed one."""


@dataclass(frozen=True, eq=False)
class Learned:
    """What one client's training gives its method; all of it is private.

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
    """What the clients of one round are to do.

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
        Given a client's key and what its training gave, when it ends, if clients are trained one by one; returns what
        takes its place, and keeps nothing of the model, whose memory the next client is trained in.
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
    """How a client scores layers on its sensitive pixels, for FedRE.

    Parameters
    ----------
    images : int
        How many it looks at; the paper takes ten of one format. A client is taken to have one format: the scores of
        these images stand for all of its images, for `every` rounds.
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
        What a client does that marks nothing: take every pixel as sensitive, split its budget evenly without scoring,
        or fail, which leaves noise alone. A client's own choice stands in ``[[privacy.clients]]``. Each layer's noise
        shows the server the split, and an even one that the client marks nothing or has failed.
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
    """Binds a model and a way of training; the same under every engine.

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
        By partition, what clients of their own choice do that mark nothing, in place of `Scoring.unmarked`.
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
        for name, value, kind in (("scoring", scoring, Scoring), ("unmarked", unmarked, Mapping)):
            if value is not None:
                require_a(name, value, kind, f"must be a {kind.__name__}")
        self.model, self.layout, self.local = model, layout, local
        self.region, self.scoring, self.unmarked = region, scoring or Scoring(), dict(unmarked or {})
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
        return self.learn_together([Task(models, clients, keys, needs, sources)])[0]

    def learn_together(self, tasks: Sequence[Task]) -> list[list[Learned | Exception]]:
        """Train the clients of several federations in one call of the trainer; each task as by `learn`."""
        prepared = [self._prepare(task) for task in tasks]
        starts, clients, keys, sources = [], [], [], []
        for task, ready in zip(tasks, prepared, strict=True):
            own, models = task.sources or (None,) * len(task.clients), task.models.unbind()
            for p, client, key, source in zip(ready, task.clients, task.keys, own, strict=True):
                if not isinstance(p, Exception):
                    starts.append(models[p[0]])
                    clients.append(client)
                    keys.append(key)
                    sources.append(source)
        if isinstance(self.trainer, PrivateTrainer) and starts:
            given = [s for s in sources if s is not None]
            outcomes = iter(self.trainer.train_noisily(_stacked(starts), clients, keys, given))
        elif isinstance(self.trainer, WorkerTrainer) and starts:
            outcomes = iter(self.trainer.train(_stacked(starts), clients, keys, tasks[0].then))
        else:
            outcomes = iter(self.trainer.train(_stacked(starts), clients, keys) if starts else ())
        return [[p if isinstance(p, Exception) else _learned(next(outcomes), *p) for p in ready] for ready in prepared]

    def _prepare(self, task: Task) -> list[tuple[int, dict[str, float] | None] | Exception]:
        """Each client's hypothesis, and its layers' scores where the method needs them."""
        chosen = choose_each(self.model, self.layout, task.models, task.clients, self.local.loss)
        needed, every = "layer_scores" in task.needs, self.scoring.every
        prepared: list[tuple[int, dict[str, float] | None] | Exception] = []
        for client, key, choice in zip(task.clients, task.keys, chosen, strict=True):
            try:
                if isinstance(choice, Exception):
                    raise choice
                scored = needed and (key[1] - 1) % every == 0
                prepared.append((choice, self._scores(task.models[choice], client, key) if scored else None))
            except Exception as error:  # a client's failure is that client's alone
                prepared.append(error)
        return prepared

    def _scores(self, start: Tensor, client: ClientData, key: Key) -> dict[str, float]:
        layers, choice = self.layout.groups("module"), self.unmarked.get(key[2], self.scoring.unmarked)
        if choice == "uniform" and _marks_nothing(client, self.scoring):
            return dict.fromkeys(layers, 1.0)
        scored = self._score(start[None], client, key, choice)
        return dict(zip(layers, scored[0].tolist(), strict=True))

    def public_scores(self, models: Tensor, public: ClientData) -> Tensor:
        """Layer scores [n, L] of received models on public data: a ServerFact."""
        return self._score(models, public, None, self.scoring.unmarked)

    def _score(self, models: Tensor, data: ClientData, key: Key | None, unmarked: str) -> Tensor:
        """Scores [n, L] on a few images with their sensitive pixels."""
        masks, region, how = data.masks, self.region, self.scoring
        images = data.x if data.x.dim() > 2 else data.x[:, None, None]  # features are a row of pixels
        if how.pixels == "all":
            masks = torch.ones(len(images), *images.shape[2:], dtype=torch.bool)
        if masks is None and region is None:
            accepted = "the method scores layers on a region: give (top, left, bottom, right), or data with masks"
            raise FieldError("region", None, accepted)
        if _marks_nothing(data, how):
            if unmarked == "refuse":
                accepted = f"{'the public set' if key is None else 'the client'} marks nothing as sensitive"
                raise FieldError("masks", "empty", f"{accepted}: mark something, or allow that")
            masks = images.new_ones(len(images), *images.shape[2:], dtype=torch.bool)
        rows = scored_rows(data, how, key)
        where = region if masks is None else masks[rows]
        assert where is not None
        x, y, loss = images[rows], data.y[rows], self.local.loss
        return score_models(self.model, self.layout, loss, models, x, y, where, how.method, probes=how.probes)


def scored_rows(data: ClientData, how: Scoring, key: Key | None = None) -> Tensor:
    """Which images of a client (with its key), or of the server's public ones, layers are scored on; ascending."""
    rows = torch.arange(len(data.x))
    if data.masks is not None and how.pixels == "marked" and not _marks_nothing(data, how):
        rows = data.masks.flatten(1).any(1).nonzero().reshape(-1)
    if how.draw == "anew" and key is not None:
        rows = rows[torch.randperm(len(rows), generator=stream(key, "scored images"))]
    return rows[: how.images].sort().values


def _marks_nothing(data: ClientData, how: Scoring) -> bool:
    return how.pixels == "marked" and data.masks is not None and not bool(data.masks.any())


def _learned(outcome: Trained | Exception, chosen: int, scores: dict[str, float] | None) -> Learned | Exception:
    return outcome if isinstance(outcome, Exception) else Learned(outcome, chosen, scores)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """[n, d]; without a copy where all clients start from the same model."""
    first = rows[0]
    same = all(row.data_ptr() == first.data_ptr() for row in rows)
    return first.expand(len(rows), -1) if same else torch.stack(list(rows))
