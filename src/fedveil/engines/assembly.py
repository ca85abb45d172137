"""Put a federation together: its method, first models, cohorts, and what a trained client would send."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast
from warnings import warn

import torch
from torch import Tensor, nn

from fedveil import methods
from fedveil.accounting import Release
from fedveil.aggregation import Aggregator, FedProx
from fedveil.errors import FieldError, NoReplyError
from fedveil.layout import Buffers, Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.learner import Learned
from fedveil.learning.losses import LossFunction, as_input, evaluating, loss_of, outputs_of
from fedveil.mechanisms import keyed_seed

AnyMethod = str | Aggregator | methods.ServerSide | methods.ClientSide | methods.Method


def resolve_method(given: AnyMethod | None) -> methods.Method:
    """Put both sides of a method together from what the front door accepts.

    Parameters
    ----------
    given : str, Aggregator, ServerSide, ClientSide, Method or None
        A shorthand of `fedveil.methods.METHODS`; a rule without privacy; a wrapped rule such as
        ``MetricPrivacy(FedAvg())``; a client side, with the server side that belongs to it; both. None: FedAvg.

    Raises
    ------
    FieldError
        If it is none of these.
    """
    if isinstance(given, methods.Method):
        return given
    if isinstance(given, type):
        raise FieldError("method", given.__name__, f"is a class: write {given.__name__}(...), with its parameters")
    if given is None or isinstance(given, str):
        return methods.build(given or "vanilla")
    if isinstance(given, Aggregator):
        return methods.build("vanilla", given)
    if hasattr(given, "combine"):
        return methods.Method(type(given).__name__, methods.TrustedServer(), cast(methods.ServerSide, given))
    if hasattr(given, "protect"):
        return methods.paired(given)
    accepted = "must be a rule, a wrapped rule, a client side, a method or the name of one"
    raise FieldError("method", type(given).__name__, accepted)


def client_sides_of(
    method: methods.Method, sides: Mapping[int, methods.ClientSide], clients: int
) -> dict[int, methods.ClientSide]:
    """Clients' own parameters of a method.

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
        if type(side) is not type(common) or (side.trust, side.needs) != (common.trust, common.needs):
            accepted = f"must be a {type(common).__name__} with the needs of the method's, {sorted(common.needs)}"
            raise FieldError(field, side, accepted)
        if "noisy_steps" in common.needs:
            accepted = f"{type(common).__name__} noises inside training, which is the same for all: leave it out"
            raise FieldError(field, side, accepted)
    return dict(sides)


def initial_broadcast(
    model: nn.Module | Callable[[], nn.Module], k: int, seed: int, buffers: Buffers, initial: Tensor | None
) -> tuple[nn.Module, Tensor]:
    """The architecture and the first models [k, d]."""
    if isinstance(model, nn.Module):
        built = [model]
        if k > 1 and initial is None:
            raise FieldError("model", type(model).__name__, f"{k} hypotheses need `initial`, or a function of models")
    elif callable(model):
        built = []
        for j in range(k):
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(keyed_seed("model", seed, j))
                try:
                    built.append(model())
                except TypeError as error:
                    accepted = f"cannot be built without arguments ({error}): write lambda: Net(...)"
                    raise FieldError("model", getattr(model, "__name__", "a function"), accepted) from error
    else:
        raise FieldError("model", type(model).__name__, "must be a torch.nn.Module or a function that builds one")
    layout = Layout.from_module(built[0], buffers=buffers)
    starts = torch.stack([layout.read(m) for m in built]) if initial is None else initial.clone()
    layout.check(starts, "initial")
    if starts.shape != (k, layout.size):
        raise FieldError("initial", tuple(starts.shape), f"must be [k, d] = [{k}, {layout.size}]")
    return built[0], starts


def several(start: Tensor, layout: Layout, k: int, seed: int) -> Tensor:
    """First hypotheses [k, d]: the start [d], then the same with the entries of each array shuffled."""
    starts = [start]
    for j in range(1, k):
        generator = torch.Generator().manual_seed(keyed_seed("hypothesis", seed, j))
        views = layout.views(start)
        orders = {n: torch.randperm(v.numel(), generator=generator) for n, v in views.items()}
        starts.append(layout.flatten({n: v.reshape(-1)[orders[n]].reshape(v.shape) for n, v in views.items()}))
    return torch.stack(starts)


def with_proximal_term(local: LocalTraining, method: methods.Method) -> LocalTraining:
    """Local training with the proximal term that the server's FedProx asks for.

    Raises
    ------
    FieldError
        If the two name different terms.
    """
    rule = method.server.rule
    if not isinstance(rule, FedProx):
        return local
    if local.prox not in (0.0, rule.mu):
        raise FieldError("prox", local.prox, f"contradicts FedProx(mu={rule.mu}): leave one of them out")
    return replace(local, prox=rule.mu)


def draw_cohort(seed: int, round_: int, partitions: Sequence[int], size: int) -> list[int]:
    """Draw a round's cohort without replacement, the same under every engine; ascending like `partitions`."""
    if size > len(partitions):
        raise FieldError("clients_per_round", size, f"there are only {len(partitions)} clients")
    if size == len(partitions):
        return list(partitions)
    generator = torch.Generator().manual_seed(keyed_seed("cohort", seed, round_))
    return [partitions[i] for i in sorted(torch.randperm(len(partitions), generator=generator)[:size].tolist())]


def require_success(round_: int, trained: Sequence[int], zeroed: Mapping[int, str]) -> None:
    """Refuse a round of which every client failed: the experimenter should know, although no server could tell."""
    if trained and set(trained) <= set(zeroed):
        raise NoReplyError(f"round {round_}: every client failed; {dict(zeroed)}")


def client_releases(learned: Learned) -> methods.Releases:
    """What a trained client would send if nothing protected it."""
    if learned.trained.total is not None:
        return (Release("sum", learned.trained.total),)
    return (
        Release("model", learned.trained.model),
        Release("count", _number(learned.trained.examples)),
        Release("metric", torch.tensor(learned.trained.loss, dtype=torch.float64), "train_loss"),
    )


@lru_cache(maxsize=4096)
def _number(count: int) -> Tensor:
    """A count as a 0-d tensor; nobody writes into releases."""
    return torch.tensor(float(count), dtype=torch.float64)


def client_facts(broadcast: methods.Broadcast, layout: Layout, learned: Learned) -> methods.ClientFacts:
    """The facts of a trained client's method."""
    return methods.ClientFacts(
        broadcast=broadcast,
        layout=layout,
        chosen=learned.chosen,
        layer_scores=learned.layer_scores,
        noised=learned.trained.noised,
    )


def require_alike(clients: Sequence[ClientData]) -> None:
    """Refuse clients whose examples differ in shape or kind: one would fail in every round, and the rest go on.

    Raises
    ------
    FieldError
        Naming the first client that differs from the first one with examples.
    """
    first, like = next((i, c) for i, c in enumerate(clients) if c.examples)
    for i, client in enumerate(clients):
        for part in ("x", "y") if client.examples else ():
            given, wanted = (_kind(getattr(c, part)) for c in (client, like))
            if given != wanted:
                raise FieldError(f"clients[{i}].{part}", given, f"must be like clients[{first}].{part}: {wanted}")


def _kind(value: Tensor) -> str:
    shape = ", ".join(["N", *map(str, value.shape[1:])])
    return f"[{shape}] {'floating point' if value.is_floating_point() else 'int64'}"


def require_fit(module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction) -> None:
    """Try two examples on the model and the loss, and refuse what does not fit before anything is trained.

    Raises
    ------
    FieldError
        Saying how to change x or y, where that can be seen.
    """
    i, client = next(((i, c) for i, c in enumerate(clients) if c.examples), (0, None))
    if client is None:
        return
    x, y, some = client.x[:2], client.y[:2], next(module.parameters())
    with evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            answer = module(as_input(x, some))
        except Exception as error:  # the model is the user's
            accepted = f"the model cannot take it ({error}){_input_hint(x, module)}"
            if isinstance(error, NotImplementedError) or "not tuple" in str(error):
                fix = "a layer such as nn.GRU answers with a tuple, and the next one takes a tensor: in a forward "
                accepted = f"{fix}method of yours, write out, _ = self.gru(x)" if "tuple" in str(error) else str(error)
                raise FieldError("model", type(module).__name__, accepted) from error
            raise FieldError(f"clients[{i}].x", _kind(x), accepted) from error
        output = outputs_of(answer)
        if loss == "cross_entropy" and _one_hot(y) and y.shape == output.shape:
            raise FieldError(f"clients[{i}].y", _kind(y), "looks one-hot; classes are integers: y.argmax(1)")
        if loss == "cross_entropy" and y.dtype == torch.int64 and output.dim() > 1:
            if bool((output >= 0).all()) and torch.allclose(output.sum(1), torch.ones(()).to(output)):
                warn("the model ends in probabilities, and its loss takes scores: leave the softmax out", stacklevel=3)
            for j, held in enumerate(clients):
                if held.examples and int(held.y.max()) >= output.shape[1]:
                    accepted = f"the model has {output.shape[1]} outputs, one a class, numbered from 0 on"
                    raise FieldError(f"clients[{j}].y", f"from {int(held.y.min())} to {int(held.y.max())}", accepted)
        name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        try:
            value = loss_of(loss)(output, y.to(some.device))
        except Exception as error:
            fix = ""
            if "positional argument" in str(error):
                raise FieldError("loss", name, f"{error}; write a function loss(outputs, y)") from error
            if y.dim() == 2 and y.shape[1] == 1:
                fix = "; make it [N]: y.reshape(-1)"
            elif loss == "cross_entropy" and y.is_floating_point():
                fix = '; classes are integers: y.astype(int). For targets use LocalTraining(loss="mse")'
            accepted = f"{name} cannot compare it with the model's outputs {tuple(output.shape[1:])} ({error}){fix}"
            raise FieldError(f"clients[{i}].y", _kind(y), accepted) from error
        if not isinstance(value, Tensor) or value.dim():
            accepted = "must return the batch's mean loss as one number, a tensor of no axes: end it with .mean()"
            raise FieldError("loss", name, accepted)


def _one_hot(y: Tensor) -> bool:
    return y.dim() == 2 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _input_hint(x: Tensor, module: nn.Module) -> str:
    """What would probably fit."""
    channels = next((m.in_channels for m in module.modules() if isinstance(m, nn.Conv2d)), 0)
    if channels and x.dim() == 3:
        return "; images are [N, channels, height, width]: x[:, None]"
    if channels and x.dim() == 4 and x.shape[-1] == channels != x.shape[1]:
        return "; images are [N, channels, height, width]: x.transpose(0, 3, 1, 2) of an array"
    return "" if x.is_floating_point() else "; where x numbers no words, write x.astype('float32')"
