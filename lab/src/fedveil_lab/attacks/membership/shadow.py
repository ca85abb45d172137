"""Train shadow models, and compute a model's confidence in records, for membership attacks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, require_count
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, make_trainer, predict
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks.observation import Received


def confidence(model: nn.Module, layout: Layout, vectors: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute log-odds of the true class, log(p / (1 - p)), of classification models [m, d] on records x, y [N].

    Returns
    -------
    Tensor
        [m, N] float64. The cross-entropy is its softplus with the sign turned: see `loss_of_confidence`.
    """
    rows = []
    for vector in vectors:
        logits = predict(model, layout, vector, x).to(torch.float64)
        own = logits.gather(1, y[:, None])[:, 0]
        rest = logits.scatter(1, y[:, None], -torch.inf).logsumexp(1)
        rows.append(own - rest)
    return torch.stack(rows)


def loss_of_confidence(odds: Tensor) -> Tensor:
    """Compute the cross-entropy (nats) from log-odds: -log p = softplus(-odds)."""
    return torch.nn.functional.softplus(-odds)


def by_round_and_client(received: Sequence[Received]) -> tuple[list[int], list[list[Received]]]:
    """List the clients that replied in every round, in ascending order, and their replies [rounds][clients].

    Raises
    ------
    FieldError
        If no client replied in every round.
    """
    replies: dict[int, dict[int, Received]] = {}  # by round and client
    for one in received:
        replies.setdefault(one.round, {})[one.partition] = one
    in_every = set[int]().union(*replies.values()).intersection(*replies.values())
    partitions = sorted(in_every)
    if not partitions:
        raise FieldError("received", len(received), "holds no client that replied in every round")
    table = []
    for _, own in sorted(replies.items()):
        table.append([own[partition] for partition in partitions])
    return partitions, table


def balanced(models: int, records: int, seed: int) -> Tensor:
    """Assign records to shadow models, bool [m, N]: each record to a random half of the models."""
    require_count("models", models, 2)
    draw = torch.rand(
        models, records, generator=torch.Generator().manual_seed(keyed_seed("shadows", seed))
    )
    return draw.argsort(0).argsort(0) < round(models / 2)


def train_shadows(
    model: nn.Module,
    layout: Layout,
    local: LocalTraining,
    starts: Tensor,
    data: ClientData,
    inside: Tensor,
    seed: int = 0,
    rounds: Sequence[int] = (1,),
) -> Tensor:
    """Train shadow models [m, d] as clients are trained, in one batched computation where the model has one.

    Parameters
    ----------
    model, layout, local
        Model, layout and training of the attacked model.
    starts : Tensor
        Start of each shadow model [m, d], or one for all [d]: an initial model, or a broadcast.
    data : ClientData
        The records [N].
    inside : Tensor
        Whether each shadow model trains on each record, bool [m, N].
    seed : int
        Seed of the order of training.
    rounds : sequence of int
        Rounds that each shadow model trains through, without averaging. Learning rates depend on the round, and
        optimisers start anew.

    Raises
    ------
    Exception
        The error that stopped the training of a shadow model.
    """
    m = len(inside)
    parts = [ClientData(data.x[rows], data.y[rows]) for rows in inside]
    trainer = make_trainer(model, layout, local)
    vectors, key = starts, keyed_seed("shadow training", seed)
    if starts.dim() == 1:
        vectors = starts.expand(m, -1)
    for number in rounds:
        rows = []
        for trained in trainer.train(vectors, parts, [(key, number, i) for i in range(m)]):
            if isinstance(trained, Exception):
                raise trained
            rows.append(trained.model)
        vectors = torch.stack(rows)
    return vectors


@dataclass(frozen=True, eq=False)
class Signals:
    """Log-odds of the true class from which membership scores are computed.

    Attributes
    ----------
    target : Tensor
        Log-odds of the attacked model on the records, [N].
    shadows : Tensor
        Log-odds of the shadow models on the records, [m, N].
    inside : Tensor
        Whether each shadow model trained on each record, bool [m, N].
    population, population_shadows : Tensor, optional
        Log-odds [P] and [m, P] on records that no model trained on, for RMIA.
    """

    target: Tensor
    shadows: Tensor
    inside: Tensor
    population: Tensor | None = None
    population_shadows: Tensor | None = None

    def __post_init__(self) -> None:
        if self.shadows.shape != self.inside.shape or self.shadows.shape[1:] != self.target.shape:
            shapes = tuple(self.target.shape), tuple(self.shadows.shape), tuple(self.inside.shape)
            raise FieldError("shadows", shapes, "must be [N], [m, N] and [m, N]")


def signals(
    model: nn.Module,
    layout: Layout,
    attacked: Tensor,
    shadows: Tensor,
    inside: Tensor,
    data: ClientData,
    population: ClientData | None = None,
) -> Signals:
    """Compute log-odds of the attacked model [d] and the shadow models [m, d] on the records and on a population."""
    every = torch.cat([attacked[None], shadows])
    odds = confidence(model, layout, every, data.x, data.y)
    if population is None:
        return Signals(odds[0], odds[1:], inside)
    others = confidence(model, layout, every, population.x, population.y)
    return Signals(odds[0], odds[1:], inside, others[0], others[1:])
