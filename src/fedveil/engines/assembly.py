"""Steps of building a federation: its method, first models, learner and cohorts; and the releases of a trained client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedveil import methods
from fedveil.accounting import Release
from fedveil.aggregation import Aggregator, FedProx
from fedveil.engines.fit import require_fit
from fedveil.errors import FieldError, NoReplyError, kind_of, require_count
from fedveil.layout import Buffers, Layout
from fedveil.learning import ClientData, LocalTraining, make_trainer
from fedveil.learning.learner import Learned, Learner
from fedveil.mechanisms import keyed_seed

AnyMethod = str | Aggregator | methods.ServerSide | methods.ClientSide | methods.Method


def resolve_method(given: AnyMethod | None) -> methods.Method:
    """Return a method with its server and client side, from any form that `Federation` accepts.

    Parameters
    ----------
    given : str, Aggregator, ServerSide, ClientSide, Method or None
        Name in `fedveil.methods.METHODS`, a rule without privacy, a wrapped rule such as ``MetricPrivacy(FedAvg())``, a
        client side (its server side follows), or both sides. None: FedAvg.

    Raises
    ------
    FieldError
        If the value has none of these forms.
    """
    if isinstance(given, methods.Method):
        return given
    if isinstance(given, type):
        raise FieldError(
            "method",
            given.__name__,
            f"is a class: write {given.__name__}(...), with its parameters",
        )
    if given is None or isinstance(given, str):
        return methods.build(given or "vanilla")
    if isinstance(given, Aggregator):
        return methods.build("vanilla", given)
    if hasattr(given, "combine"):
        return methods.Method(
            type(given).__name__, methods.TrustedServer(), cast(methods.ServerSide, given)
        )
    if hasattr(given, "protect"):
        return methods.paired(given)
    accepted = "must be a rule, a wrapped rule, a client side, a method or the name of one"
    raise FieldError("method", kind_of(given), accepted)


def client_sides_of(
    method: methods.Method, sides: Mapping[int, methods.ClientSide], clients: int
) -> dict[int, methods.ClientSide]:
    """Return clients' own parameters of a method, by partition, after checking that they fit the method.

    Raises
    ------
    FieldError
        For an unknown partition, or a client side that the method's server side does not understand.
    """
    common = method.client
    for partition, side in sides.items():
        field = f"client_sides[{partition}]"
        if not 0 <= partition < clients:
            raise FieldError(field, partition, f"there are partitions 0 to {clients - 1}")
        if type(side) is not type(common) or (side.trust, side.needs) != (
            common.trust,
            common.needs,
        ):
            accepted = f"must be a {type(common).__name__} with the needs of the method's, {sorted(common.needs)}"
            raise FieldError(field, side, accepted)
        if "noisy_steps" in common.needs:
            accepted = f"{type(common).__name__} noises inside training, which is the same for all: leave it out"
            raise FieldError(field, side, accepted)
    return dict(sides)


def initial_broadcast(
    model: nn.Module | Callable[[], nn.Module],
    k: int,
    seed: int,
    buffers: Buffers,
    initial: Tensor | None,
) -> tuple[nn.Module, Tensor]:
    """Build the model and the first hypotheses [k, d]."""
    if isinstance(model, nn.Module):
        built = [model]
        if k > 1 and initial is None:
            raise FieldError(
                "model",
                kind_of(model),
                f"{k} hypotheses need `initial`, or a function of models",
            )
    elif callable(model):
        built = [_built(model, seed, j) for j in range(k)]
    else:
        raise FieldError(
            "model", kind_of(model), "must be a torch.nn.Module or a function that builds one"
        )
    layout = Layout.from_module(built[0], buffers=buffers)
    if initial is None:
        starts = torch.stack([layout.read(one) for one in built])
    else:
        starts = initial.clone()
    layout.check(starts, "initial")
    if starts.shape != (k, layout.size):
        raise FieldError("initial", tuple(starts.shape), f"must be [k, d] = [{k}, {layout.size}]")
    return built[0], starts


def _built(make: Callable[[], nn.Module], seed: int, j: int) -> nn.Module:
    """Build the j-th model with its own seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(keyed_seed("model", seed, j))
        try:
            return make()
        except TypeError as error:
            accepted = f"cannot be built without arguments ({error}): write lambda: Net(...)"
            raise FieldError("model", getattr(make, "__name__", "a function"), accepted) from error


def several(start: Tensor, layout: Layout, k: int, seed: int) -> Tensor:
    """Make first hypotheses [k, d] from a start [d]: the start, then copies with the entries of each array shuffled."""
    starts = [start]
    for j in range(1, k):
        generator = torch.Generator().manual_seed(keyed_seed("hypothesis", seed, j))
        shuffled: dict[str, Tensor] = {}
        for name, view in layout.views(start).items():
            order = torch.randperm(view.numel(), generator=generator)
            shuffled[name] = view.reshape(-1)[order].reshape(view.shape)
        starts.append(layout.flatten(shuffled))
    return torch.stack(starts)


def with_proximal_term(local: LocalTraining, method: methods.Method) -> LocalTraining:
    """Add the proximal term of the server's FedProx to local training.

    Raises
    ------
    FieldError
        If local training already has another proximal term.
    """
    rule = method.server.rule
    if not isinstance(rule, FedProx):
        return local
    if local.prox not in (0.0, rule.mu):
        raise FieldError(
            "prox", local.prox, f"contradicts FedProx(mu={rule.mu}): leave one of them out"
        )
    return replace(local, prox=rule.mu)


def with_local_rate(method: methods.Method, local: LocalTraining) -> methods.Method:
    """Give a secure sum's server step the learning rate of local training, unless the method has one."""
    server = method.server
    if not isinstance(server, methods.SecureSum) or server.lr is not None:
        return method
    return replace(method, server=replace(server, lr=local.rate()))


def learner_of(
    module: nn.Module,
    layout: Layout,
    local: LocalTraining | None,
    method: methods.Method,
    clients: Sequence[ClientData],
    region: Any,
    trainer: str,
    workers: int,
) -> Learner:
    """Return the clients' learner, after checking that the model, the data and the loss fit.

    Raises
    ------
    FieldError
        If they do not fit.
    """
    local, noisy = with_proximal_term(local or LocalTraining(), method), method.noisy
    require_fit(module, clients, local.loss)
    steps = None if noisy is None else noisy.noisy_steps
    like = next(client for client in clients if client.examples)
    made = make_trainer(
        module, layout, local, trainer, workers=workers, noisy=steps, example=(like.x, like.y)
    )
    return Learner(module, layout, local, region=region, trainer=made)


def cohort_size(given: int | None, clients: int, method: methods.Method) -> int:
    """Return the number of clients in a round: the given one, or all clients.

    Raises
    ------
    FieldError
        If the number exceeds that of the clients, or the method's promise does not hold for such a cohort.
    """
    size = require_count("clients_per_round", clients if given is None else given)
    require_undrawn(size, clients, method)
    if size > clients:
        raise FieldError("clients_per_round", given, f"there are only {clients} clients")
    if method.noisy is not None:
        method.noisy.require_sites(size, "clients_per_round" if size < clients else "clients")
    return size


def require_undrawn(size: int, clients: int, method: methods.Method) -> None:
    """Refuse a drawn cohort of `size` out of `clients` under add/remove, as it changes with who belongs."""
    if size < clients and method.server.relation == "add/remove":
        raise FieldError(
            "relation", "add/remove", "a sampled cohort changes with its members: use zero-out"
        )


def require_planned(cohort: object, method: methods.Method, field: str) -> None:
    """Refuse a federation of whoever is connected under add/remove: its divisor would change with who belongs."""
    if cohort is None and method.server.relation == "add/remove":
        accepted = "is needed under add/remove: it gives the divisor of the mean, whoever belongs; or take zero-out"
        raise FieldError(field, None, accepted)


def draw_cohort(seed: int, round_: int, partitions: Sequence[int], size: int) -> list[int]:
    """Draw a round's cohort from `partitions` without replacement, in their order; the same under every engine."""
    if size > len(partitions):
        raise FieldError("clients_per_round", size, f"there are only {len(partitions)} clients")
    if size == len(partitions):
        return list(partitions)
    generator = torch.Generator().manual_seed(keyed_seed("cohort", seed, round_))
    order = torch.randperm(len(partitions), generator=generator).tolist()
    return [partitions[i] for i in sorted(order[:size])]


def require_success(round_: int, trained: Sequence[int], zeroed: Mapping[int, str]) -> None:
    """Stop if every client failed. A real server could not see this; a simulation should say it."""
    if trained and set(trained) <= set(zeroed):
        raise NoReplyError(f"round {round_}: every client failed; {dict(zeroed)}")


def client_releases(learned: Learned) -> methods.Releases:
    """Return a trained client's releases in plain form: model, number of examples and metrics before any protection."""
    trained = learned.trained
    if trained.total is not None:
        return (Release("sum", trained.total),)
    count = Release("count", _number(trained.examples))
    loss = Release("metric", torch.tensor(trained.loss, dtype=torch.float64), "train_loss")
    if not trained.model.numel():  # an empty model was already added to a sum
        return (count, loss)
    return (Release("model", trained.model), count, loss)


@lru_cache(maxsize=4096)  # saves 4% of a round of many small clients
def _number(count: int) -> Tensor:
    """Return a count as a 0-d tensor. Equal counts share one tensor, as nobody changes a release in place."""
    return torch.tensor(float(count), dtype=torch.float64)


def client_facts(
    broadcast: methods.Broadcast, layout: Layout, learned: Learned
) -> methods.ClientFacts:
    """Collect the facts that a trained client's method needs to protect its result."""
    return methods.ClientFacts(
        broadcast=broadcast,
        layout=layout,
        chosen=learned.chosen,
        layer_scores=learned.layer_scores,
        noised=learned.trained.noised,
    )
