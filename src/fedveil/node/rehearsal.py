"""Rehearsal: one step of an operator's own training on the site's own data, for the operator only; nothing is released.

In a run the privacy mod answers a training failure with protected zeros, so nobody may notice it. Here the code runs as
in a run, its answer is checked and dropped, and no ledger is opened.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedveil.accounting import model_of
from fedveil.engines.assembly import resolve_method
from fedveil.engines.flower import records
from fedveil.engines.flower.grid import message_identity
from fedveil.engines.flower.lending import Lent, lending
from fedveil.engines.flower.mod import method_from
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Layout
from fedveil.learning.witness import witnessed
from fedveil.mechanisms import SecureSource
from fedveil.methods import Broadcast, Method, PublicFacts
from fedveil.node.guard import NodePolicy, own_client

SPREAD = 0.01  # of the model that is trained: zeros would give some networks no gradient
NAMED = 6  # entries of a model that are listed by name


def rehearse(policy: Path, config: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """Train once by the operator's own client, and describe the result in words.

    Parameters
    ----------
    policy : Path
        The node's policy file.
    config : mapping
        Configuration of the node, as in the SuperNode's ``--node-config``.
    told : mapping
        Values for the config of a server's messages, such as a learning rate.

    Raises
    ------
    FieldError
        If the operator has no own client, or the client names no layout.
    FedVeilError
        If training raises an error, or its answer cannot be protected.
    """
    reference = NodePolicy.read(policy).admission.client
    if reference is None:
        raise FieldError(
            "client", None, "it is needed in [node]: only code of the operator's own is rehearsed"
        )
    app, given = own_client(reference)
    layout = given.get("layout")
    if not isinstance(layout, Layout):
        raise FieldError(
            "client",
            reference,
            "builds no privacy_mod(layout, ...), which says what its model shares",
        )
    context = Context(1, 1, dict(config), RecordDict(), {})
    method = _method_of(given.get("method"), context)
    broadcast = _made_up(layout, method)
    content = records.write_broadcast(broadcast, layout, ConfigRecord(dict(told)))
    with message_identity(), _first_values(layout) as first:
        message = Message(content, 1, MessageType.TRAIN)
        source = None if method.noisy is None else SecureSource()
        lent = Lent(source, given.get("trainer"), broadcast.models[0])
        reply = _played(app, message, context, lent)
    answer = lent.answer()
    if answer is None:
        answer = _content_of(reply)
    found = _looked_at(answer, layout, broadcast)
    return found + _kept(answer, layout, first)


def _played(
    app: ClientAppCallable, message: Message, context: Context, lent: Lent
) -> Message | None:
    """Run the client's code on a message; an error over the data, which a run would only log, is raised."""
    reply: Message | None = None
    try:
        with witnessed() as failures, lending(lent):
            reply = app(message, context)
        for error in failures:
            raise error
    except Exception as error:
        raise FedVeilError(f"training raised {type(error).__name__}: {error}") from error
    return reply


def _content_of(reply: Message | None) -> RecordDict:
    """Return what a client's code answered."""
    if reply is None or reply.has_error():
        said = "nothing" if reply is None else f"error {reply.error.code}: {reply.error.reason}"
        raise FedVeilError(f"training answered with {said}")
    return reply.content


@contextmanager
def _first_values(layout: Layout) -> Iterator[dict[str, Tensor]]:
    """Make the app's strict `load_state_dict` succeed in this context, by its own model's values for unshared entries.

    In a run the server's first arrays hold these entries; a rehearsal has no server.

    Yields
    ------
    dict of str to Tensor
        Values used in this way, by name.
    """
    declared = {*layout.kept, *layout.constants}
    first: dict[str, Tensor] = {}
    load = nn.Module.load_state_dict

    def completed(module: nn.Module, state: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        buffers = dict(module.named_buffers())
        more = {
            name: value
            for name, value in module.state_dict().items()
            if name in declared and name not in state and isinstance(value, Tensor)
        }
        for name, value in more.items():
            first[name] = value.clone() if name in buffers else value  # a frozen one never changes
        return load(module, {**state, **more}, *rest, **options)

    with patch.object(nn.Module, "load_state_dict", completed):
        yield first


def _kept(content: RecordDict, layout: Layout, first: Mapping[str, Tensor]) -> str:
    """Describe the unshared entries of the model: those that stay at the node, their origin, and changes by training."""
    names = [name for name in layout.kept if name in first]
    if not names:
        return ""
    answered = records.tensors_in(content, records.ARRAYS)
    changed = [n for n in names if n in answered and not torch.equal(answered[n], first[n].cpu())]
    said = f". {len(names)} entries of the model stay at this node, of which training changed {len(changed)}"
    if changed:
        said += f" ({', '.join(changed[:NAMED])}{', ...' if len(changed) > NAMED else ''})"
    return f"{said}. Their first values are the client's own here, and in a run the server's first arrays'"


def _method_of(given: Any, context: Context) -> Method:
    if given is None:
        return method_from(context)
    if callable(given) and not isinstance(given, Method):
        given = given(int(context.node_config.get("partition-id", 0)))
    return resolve_method(given)


def _made_up(layout: Layout, method: Method) -> Broadcast:
    """Make a broadcast of small random models."""
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(method.server.hypotheses, layout.size, generator=generator) * SPREAD
    public = PublicFacts(round=1, rounds=method.planned or 1, cohort=2, dimension=layout.size)
    return Broadcast(models=models.to(layout.dtype), public=public)


def _looked_at(content: RecordDict, layout: Layout, broadcast: Broadcast) -> str:
    """Describe an answer, and refuse one for which the mod would send only zeros."""
    total = records.read_sum(content)
    if total:
        return f"trained: the sum of one step, {total[0].value.numel()} numbers. Nothing left, nothing was charged"
    releases = records.read_releases(content, layout)
    records.read_facts(content, layout, broadcast)
    model = model_of(releases)
    if model is None:
        raise FedVeilError(
            "training answered without a model: reply with ArrayRecord(model.state_dict())"
        )
    if not bool(torch.isfinite(model).all()):
        raise FedVeilError("training answered with a model that is not finite")
    moved = min(float((model - start).norm()) for start in broadcast.models)
    if moved == 0:
        raise FedVeilError("training answered with the model that it was given: it learned nothing")
    return f"trained: the model moved by {moved:.3g}. Nothing left, nothing was charged"
