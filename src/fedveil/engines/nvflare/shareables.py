"""What FLARE carries, as our own: a job's JSON as methods and models; broadcasts and replies as shareables.

Shareables keep every bit. A task holds the model as weights, under the names that ``model.state_dict()`` has, and in
its meta the public facts and the sites in the order of their partitions. A result is rebuilt from the protected
releases alone, and marked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils import fobs
from torch import Tensor

from fedveil.accounting import Release, count_of, model_of
from fedveil.aggregation import AGGREGATORS, Aggregator
from fedveil.engines import messages
from fedveil.engines.assembly import initial_broadcast
from fedveil.errors import FieldError, require_choice
from fedveil.layout import Buffers, Layout
from fedveil.learning.models import MODELS
from fedveil.methods import Broadcast, ClientSide, Method, Releases, build, require_method

SITES = "fedveil.sites"
fobs.register(NumpyArrayDecomposer)  # a server's job without a FLARE persistor knows no arrays


def method_of(name: str, parameters: Mapping[str, Any] | None, rule: Mapping[str, Any] | str | None = None) -> Method:
    """A method and its rule, if it needs no more of a client than the trained model.

    Raises
    ------
    FieldError
        For unknown names, and for methods whose facts come from training code.
    """
    require_method("method", name)
    method = build(name, None if rule is None else _rule(rule), **(parameters or {}))
    if method.client.needs:
        accepted = "needs more of training than the model, all that FLARE's filters see: run it embedded or in Flower"
        raise FieldError("method", name, accepted)
    if method.server.hypotheses != 1 or method.server.needs:
        fix = "hypotheses=1" if method.server.hypotheses != 1 else "another method or rule: there are no public data"
        raise FieldError("method", name, f"has more than a model to send or to know; use {fix}")
    return method


def model_of_name(model: str, options: Mapping[str, Any] | None, buffers: Buffers, seed: int) -> tuple[Layout, Tensor]:
    """The layout of a model ``"package.module:Net"``, and its first parameters [1, d] under a seed."""
    if not isinstance(model, str) or ":" not in model:
        raise FieldError("model", model, 'must be "package.module:Net", importable where the job runs')
    factory = MODELS.find(model)
    module, starts = initial_broadcast(lambda: factory(**(options or {})), 1, seed, buffers, None)
    return Layout.from_module(module, buffers=buffers), starts


def _rule(given: Mapping[str, Any] | str) -> Aggregator:
    values = {"name": given} if isinstance(given, str) else dict(given)
    name = require_choice("aggregator.name", str(values.pop("name", "fedavg")), AGGREGATORS)
    return AGGREGATORS[name](**values)


def write_broadcast(broadcast: Broadcast, layout: Layout, sites: Sequence[str]) -> Shareable:
    """The data of a task."""
    meta = {messages.PUBLIC: messages.public_values(broadcast), SITES: list(sites)}
    task: Shareable = DXO(DataKind.WEIGHTS, _arrays(layout, broadcast.models[0]), meta).to_shareable()
    task.set_header(AppConstants.CURRENT_ROUND, broadcast.public.round - 1)  # FLARE counts from 0
    task.set_header(AppConstants.NUM_ROUNDS, broadcast.public.rounds)
    return task


def read_broadcast(task: Shareable, layout: Layout) -> tuple[Broadcast, list[str]]:
    """What a task broadcasts, and the sites.

    Raises
    ------
    FieldError
        If the task does not come from `FedVeilController`, or for another layout.
    """
    dxo = _dxo(task, "task")
    facts, sites = (dxo.meta or {}).get(messages.PUBLIC), (dxo.meta or {}).get(SITES)
    if not isinstance(facts, dict) or not isinstance(sites, list):
        raise FieldError(messages.PUBLIC, None, "is missing from the task: the server must run FedVeilController")
    public, count = messages.read_public(facts, layout)
    if count != 1 or dxo.data_kind != DataKind.WEIGHTS:
        raise FieldError("hypotheses", count, "under NVIDIA FLARE a task has the weights of one model")
    if messages.REPLY in dxo.meta:
        raise FieldError(messages.REPLY, "in a task", "is for replies")
    return Broadcast(models=_vector(layout, dxo.data)[None], public=public), sites


def read_trained(result: Shareable, layout: Layout, broadcast: Broadcast) -> Releases:
    """What training code answered: the model (a difference is added to the broadcast one), count and metrics."""
    dxo = _dxo(result, "result")
    model = _vector(layout, dxo.data)
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        model = broadcast.models[0] + model
    elif dxo.data_kind != DataKind.WEIGHTS:
        raise FieldError("data_kind", dxo.data_kind, "must be the trained model: FLModel(params=model.state_dict())")
    metrics = (dxo.meta or {}).get(MetaKey.INITIAL_METRICS)
    return (Release("model", model), *messages.read_metrics(metrics if isinstance(metrics, dict) else {}))


def write_reply(releases: Releases, layout: Layout, client: ClientSide) -> Shareable:
    """A result that holds the releases and nothing else."""
    model = model_of(releases)
    if model is None:
        raise FieldError("releases", [r.kind for r in releases], "hold no model")
    meta = {
        messages.REPLY: messages.mark_of(client, count_of(releases) is not None),
        MetaKey.INITIAL_METRICS: messages.metric_values(releases),
    }
    reply: Shareable = DXO(DataKind.WEIGHTS, _arrays(layout, model), meta).to_shareable()
    return reply


def read_reply(result: Shareable, layout: Layout, client: ClientSide) -> Releases:
    """The releases of a marked result.

    Raises
    ------
    UnprotectedError
        If the filters did not run, or ran with another method than the server's.
    """
    dxo = _dxo(result, "result")
    mark = (dxo.meta or {}).get(messages.REPLY)
    if not isinstance(mark, dict):
        raise messages.UnprotectedError(
            "a result was not protected: put PrivacyFilter into the site's task data filters and ReleaseFilter last "
            "into its task result filters, in its local/privacy.json or for the task by name"
        )
    counted = messages.require_mark(mark, client)
    metrics = dxo.meta.get(MetaKey.INITIAL_METRICS)
    releases = messages.read_metrics(metrics if isinstance(metrics, dict) else {}, counted)
    return (Release("model", _vector(layout, dxo.data)), *releases)


def _arrays(layout: Layout, vector: Tensor) -> dict[str, Any]:
    return {name: view.contiguous().clone().numpy() for name, view in layout.views(vector.detach()).items()}


def _vector(layout: Layout, arrays: Mapping[str, Any]) -> Tensor:
    tensors = {name: torch.as_tensor(value) for name, value in arrays.items()}
    messages.require_shared(layout, {name: value.shape for name, value in tensors.items()})
    return layout.flatten({name: tensors[name] for name in layout.names if name in tensors})


def _dxo(shareable: Shareable, what: str) -> DXO:
    try:
        dxo = from_shareable(shareable)
    except ValueError as error:
        raise FieldError(what, shareable.get_return_code(), "must hold the weights of a model") from error
    if not isinstance(dxo.data, dict):
        raise FieldError(what, type(dxo.data).__name__, "must hold the weights of a model by name")
    return dxo
