"""Put a federation together: its method, first models, cohorts, and what a trained client would send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.accounting import Release
from fedveil.aggregation import Aggregator, FedProx
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.learner import Learned
from fedveil.mechanisms import keyed_seed
from fedveil.methods import (
    METHODS,
    Broadcast,
    ClientFacts,
    ClientSide,
    Method,
    Plain,
    Releases,
    ServerSide,
    TrustedServer,
    build,
)


def resolve_method(aggregator: Aggregator | ServerSide | None, privacy: str | Method | ClientSide | None) -> Method:
    """Put a method together from what the front door accepts.

    Raises
    ------
    FieldError
        If the two sides do not belong together.
    """
    if isinstance(privacy, Method):
        if aggregator is not None:
            raise FieldError(
                "aggregator", type(aggregator).__name__, "the method brings its own server side; leave it out"
            )
        return privacy
    if aggregator is None or isinstance(aggregator, Aggregator):
        if privacy is None or isinstance(privacy, str):
            return build(privacy or "vanilla", aggregator)
        server = next((s.server for s in METHODS.values() if s.client is type(privacy)), Plain)
        return Method(
            type(privacy).__name__, privacy, server() if aggregator is None else server(aggregator=aggregator)
        )
    if isinstance(privacy, str):
        raise FieldError(
            "privacy", privacy, "a shorthand builds both sides: give a plain aggregation rule, or no shorthand"
        )
    return Method(type(aggregator).__name__, privacy or TrustedServer(), aggregator)


def initial_broadcast(
    model: nn.Module | Callable[[], nn.Module], k: int, seed: int, buffers: str, initial: Tensor | None
) -> tuple[nn.Module, Tensor]:
    """The architecture and the first models [k, d]."""
    if isinstance(model, nn.Module):
        built = [model]
        if k > 1 and initial is None:
            raise FieldError(
                "model", type(model).__name__, f"{k} hypotheses need a function that builds the model, or `initial`"
            )
    elif callable(model):
        built = []
        for j in range(k):
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(keyed_seed("model", seed, j))
                built.append(model())
    else:
        raise FieldError("model", type(model).__name__, "must be a torch.nn.Module or a function that builds one")
    layout = Layout.from_module(built[0], buffers=buffers)  # type: ignore[arg-type]
    starts = torch.stack([layout.read(m) for m in built]) if initial is None else initial.clone()
    layout.check(starts, "initial")
    if starts.shape != (k, layout.size):
        raise FieldError("initial", tuple(starts.shape), f"must be [k, d] = [{k}, {layout.size}]")
    return built[0], starts


def with_proximal_term(local: LocalTraining, method: Method) -> LocalTraining:
    """Local training with the proximal term that the server's FedProx asks for.

    Raises
    ------
    FieldError
        If the two name different terms.
    """
    rule = getattr(method.server, "aggregator", None)
    if not isinstance(rule, FedProx):
        return local
    if local.prox not in (0.0, rule.mu):
        raise FieldError("prox", local.prox, f"contradicts FedProx(mu={rule.mu}): leave one of them out")
    return replace(local, prox=rule.mu)


def draw_cohort(seed: int, round_: int, partitions: Sequence[int], size: int) -> list[int]:
    """Draw a round's cohort without replacement, the same under every engine; ascending like `partitions`."""
    if size == len(partitions):
        return list(partitions)
    generator = torch.Generator().manual_seed(keyed_seed("cohort", seed, round_))
    return [partitions[i] for i in sorted(torch.randperm(len(partitions), generator=generator)[:size].tolist())]


def client_releases(learned: Learned) -> Releases:
    """What a trained client would send if nothing protected it."""
    return (
        Release("model", learned.trained.model),
        Release("count", _number(learned.trained.examples)),
        Release("metric", torch.tensor(learned.trained.loss, dtype=torch.float64), "train_loss"),
    )


@lru_cache(maxsize=4096)
def _number(count: int) -> Tensor:
    """A count as a 0-d tensor; nobody writes into releases."""
    return torch.tensor(float(count), dtype=torch.float64)


def client_facts(broadcast: Broadcast, layout: Layout, learned: Learned) -> ClientFacts:
    """The facts of a trained client's method."""
    return ClientFacts(broadcast=broadcast, layout=layout, chosen=learned.chosen, layer_scores=learned.layer_scores)


def as_client(value: ClientData | Sequence[Any], name: str) -> ClientData:
    """Accept ClientData, or a tuple of tensors or arrays."""
    if isinstance(value, ClientData):
        return value
    if not isinstance(value, Sequence) or len(value) not in (2, 4):
        raise FieldError(name, type(value).__name__, "must be (x, y), (x, y, test_x, test_y) or ClientData")
    tensors = [v if isinstance(v, Tensor) else torch.as_tensor(v) for v in value]
    for i in (1, 3):
        if i < len(tensors) and not tensors[i].is_floating_point():
            tensors[i] = tensors[i].to(torch.int64)
    for i in (0, 2):
        if i < len(tensors) and tensors[i].dtype == torch.float64:
            tensors[i] = tensors[i].to(torch.float32)
    return ClientData(*tensors)  # type: ignore[arg-type]
