"""What a client does with a broadcast before its method protects the result: choose, train, score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, require_count
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.scores import Region, score_models
from fedveil.learning.streams import Key
from fedveil.learning.trainers import make_trainer
from fedveil.learning.training import Hook, LocalTraining, Trained, choose


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
        ``{"layer_scores"}`` or nothing.
    """

    models: Tensor
    clients: Sequence[ClientData]
    keys: Sequence[Key]
    needs: frozenset[str] = frozenset()


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
        The privacy-sensitive pixels, for methods that need layer scores.
    score_images : int
        Images a client scores layers on (its first ones).
    trainer : Trainer, optional
        By default the one that `make_trainer` chooses, with `hook`.
    hook : callable, optional
        Per-step gradient hook of that trainer.
    device : str
        Where to train.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        local: LocalTraining,
        *,
        region: Region | None = None,
        score_images: int = 10,
        trainer: Trainer | None = None,
        hook: Hook | None = None,
        device: str = "cpu",
    ) -> None:
        self.model, self.layout, self.local = model, layout, local
        self.region, self.score_images = region, require_count("score_images", score_images)
        self.trainer = trainer or make_trainer(model, layout, local, hook=hook, device=device)

    def learn(
        self, models: Tensor, clients: Sequence[ClientData], keys: Sequence[Key], needs: frozenset[str] = frozenset()
    ) -> list[Learned | Exception]:
        """Let clients choose a hypothesis, train it, and score layers if their method needs it.

        Parameters
        ----------
        models : Tensor
            [k, d], the broadcast.
        clients, keys : sequence
            n clients with their keys (seed, round, partition).
        needs : frozenset of str
            ``{"layer_scores"}`` or nothing.

        Returns
        -------
        list of Learned or Exception
            In the order of the clients.
        """
        return self.learn_together([Task(models, clients, keys, needs)])[0]

    def learn_together(self, tasks: Sequence[Task]) -> list[list[Learned | Exception]]:
        """Train the clients of several federations in one call of the trainer; each task as by `learn`."""
        prepared = [[self._prepare(t.models, client, t.needs) for client in t.clients] for t in tasks]
        starts, clients, keys = [], [], []
        for task, found in zip(tasks, prepared, strict=True):
            for p, client, key in zip(found, task.clients, task.keys, strict=True):
                if not isinstance(p, Exception):
                    starts.append(task.models[p[0]])
                    clients.append(client)
                    keys.append(key)
        outcomes = iter(self.trainer.train(_stacked(starts), clients, keys) if starts else ())
        return [[p if isinstance(p, Exception) else _learned(next(outcomes), *p) for p in found] for found in prepared]

    def _prepare(
        self, models: Tensor, client: ClientData, needs: frozenset[str]
    ) -> tuple[int, dict[str, float] | None] | Exception:
        try:
            chosen = choose(self.model, self.layout, models, client, self.local.loss)
            scores = self._scores(models[chosen], client) if "layer_scores" in needs else None
        except Exception as error:  # a client's failure is that client's alone
            return error
        return chosen, scores

    def _scores(self, start: Tensor, client: ClientData) -> dict[str, float]:
        few = slice(0, self.score_images)
        scored = score_models(
            self.model, self.layout, self.local.loss, start[None], client.x[few], client.y[few], self._region()
        )
        return dict(zip(self.layout.groups("module"), scored[0].tolist(), strict=True))

    def public_scores(self, models: Tensor, public: ClientData) -> Tensor:
        """Layer scores [n, L] of received models on public data: a ServerFact."""
        few = slice(0, self.score_images)
        return score_models(
            self.model, self.layout, self.local.loss, models, public.x[few], public.y[few], self._region()
        )

    def _region(self) -> Region:
        if self.region is None:
            raise FieldError("region", None, "the method scores layers on a region: give (top, left, bottom, right)")
        return self.region


def _learned(outcome: Trained | Exception, chosen: int, scores: dict[str, float] | None) -> Learned | Exception:
    return outcome if isinstance(outcome, Exception) else Learned(outcome, chosen, scores)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """[n, d]; without a copy where all clients start from the same model."""
    first = rows[0]
    same = all(row.data_ptr() == first.data_ptr() for row in rows)
    return first.expand(len(rows), -1) if same else torch.stack(list(rows))
