"""Conversion between FLARE's JSON and messages (shareables) and FedVeil's methods, models, broadcasts and replies.

Shareables keep every bit. A task holds the model as weights, under the names of ``model.state_dict()``. Its meta holds
the public facts, and the sites in the order of their partitions. A result is rebuilt from the protected releases only,
and marked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils import fobs
from torch import Tensor, nn

from fedveil.accounting import Release, count_of, model_of
from fedveil.aggregation import AGGREGATORS, Aggregator
from fedveil.engines import messages
from fedveil.engines.assembly import initial_broadcast
from fedveil.engines.server import PUBLIC_SCORES
from fedveil.errors import FieldError, kind_of, require_choice
from fedveil.layout import Buffers, Layout
from fedveil.learning.models import MODELS
from fedveil.methods import Broadcast, ClientSide, Method, Releases, build, require_method

SITES = "fedveil.sites"
METHOD = "fedveil.method"  # key of the method that the server runs
SHARE = "fedveil.share"  # share of a secure sum, the only value that leaves the site
OTHER = "fedveil.hypothesis."  # prefix of the arrays' names in all hypotheses but the first
fobs.register(
    NumpyArrayDecomposer
)  # the server of a job without a FLARE persistor cannot decode arrays otherwise


def method_of(
    name: str,
    parameters: Mapping[str, Any] | None,
    rule: Mapping[str, Any] | str | None = None,
    site_training: bool = False,
    public: bool = False,
) -> Method:
    """Build a method by name, with its parameters and rule; refuse one that a FLARE job cannot run.

    If a script trains, filters see only the trained model. If the sites train by `FedVeilExecutor`, a method may use
    values known only in training, and several hypotheses; the server may then have `public` data.

    Raises
    ------
    FieldError
        For unknown names, and for methods that need more than the job has.
    """
    require_method("method", name)
    built = None
    if rule is not None:
        built = rule_of(rule)
    method = build(name, built, **(parameters or {}))
    if not site_training and method.client.needs:
        accepted = "needs more of training than the model, all that FLARE's filters see: let the sites train by "
        accepted += (
            "FedVeilExecutor (training= of PrivacyFilter, site_training=True of FedVeilController)"
        )
        raise FieldError("method", name, accepted)
    if not site_training and method.server.hypotheses != 1:
        raise FieldError(
            "method",
            name,
            "has more than a model to send or to know; use hypotheses=1, or site_training",
        )
    if not public and (method.server.needs or PUBLIC_SCORES in method.client.needs):
        accepted = "has more than a model to know: give FedVeilController public data (public=), or use another method"
        raise FieldError("method", name, accepted)
    return method


def model_of_name(
    model: str, options: Mapping[str, Any] | None, buffers: Buffers, seed: int, k: int = 1
) -> tuple[nn.Module, Layout, Tensor]:
    """Build a model ``"package.module:Net"``; return it with its layout and its first parameters [k, d] from a seed."""
    if not isinstance(model, str) or ":" not in model:
        raise FieldError(
            "model", model, 'must be "package.module:Net", importable where the job runs'
        )
    factory = MODELS.find(model)
    module, starts = initial_broadcast(lambda: factory(**(options or {})), k, seed, buffers, None)
    return module, Layout.from_module(module, buffers=buffers), starts


def rule_of(given: Mapping[str, Any] | str) -> Aggregator:
    """Build an aggregation rule from its name, or from a table of its ``name`` and options."""
    if isinstance(given, str):
        given = {"name": given}
    values = dict(given)
    name = require_choice("aggregator.name", str(values.pop("name", "fedavg")), AGGREGATORS)
    return AGGREGATORS[name](**values)


def write_broadcast(
    broadcast: Broadcast, layout: Layout, sites: Sequence[str], method: str = ""
) -> Shareable:
    """Make the data of a task from a broadcast."""
    meta = {messages.PUBLIC: messages.public_values(broadcast), SITES: list(sites)}
    if method:
        meta[METHOD] = method
    arrays = dict[str, Any]()
    for place, model in enumerate(broadcast.models):
        for name, array in _arrays(layout, model).items():
            arrays[_hypothesis(place, name)] = array
    task: Shareable = DXO(DataKind.WEIGHTS, arrays, meta).to_shareable()
    task.set_header(AppConstants.CURRENT_ROUND, broadcast.public.round - 1)  # FLARE counts from 0
    task.set_header(AppConstants.NUM_ROUNDS, broadcast.public.rounds)
    return task


def require_own_method(task: Shareable, own: str) -> None:
    """Refuse, before data are touched, a task of another method than the site's.

    Raises
    ------
    FieldError
        If the task names another method. A task without a name passes: the server checks the reply's mark.
    """
    named = (_dxo(task, "task").meta or {}).get(METHOD)
    if named is not None and named != own:
        raise FieldError("method", named, f"the site's is {own!r}: both must have the same")


def read_broadcast(
    task: Shareable, layout: Layout, hypotheses: int = 1
) -> tuple[Broadcast, list[str]]:
    """Read the broadcast in a task, with this many hypotheses, and the names of the sites.

    Raises
    ------
    FieldError
        If the task does not come from `FedVeilController`, or is for another layout.
    """
    dxo = _dxo(task, "task")
    facts, sites = (dxo.meta or {}).get(messages.PUBLIC), (dxo.meta or {}).get(SITES)
    if not isinstance(facts, dict) or not isinstance(sites, list):
        raise FieldError(
            messages.PUBLIC, None, "the task lacks it: the server must run FedVeilController"
        )
    public, count = messages.read_public(facts, layout)
    if count != hypotheses or dxo.data_kind != DataKind.WEIGHTS:
        accepted = f"the task must have the weights of {hypotheses}, as the site's method has"
        raise FieldError("hypotheses", count, accepted)
    if messages.REPLY in dxo.meta:
        raise FieldError(messages.REPLY, "in a task", "is for replies")
    found = [dict[str, Any]() for _ in range(count)]
    for key, array in dxo.data.items():
        place, name = _of_hypothesis(key)
        if place >= count:
            raise FieldError("hypotheses", place, f"the task has {count}")
        found[place][name] = array
    return Broadcast(
        models=torch.stack([_vector(layout, arrays) for arrays in found]), public=public
    ), sites


def read_trained(result: Shareable, layout: Layout, broadcast: Broadcast) -> Releases:
    """Read training code's result: model, count and metrics. A difference is added to the broadcast model."""
    dxo = _dxo(result, "result")
    model = _vector(layout, dxo.data)
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        model = broadcast.models[0] + model
    elif dxo.data_kind != DataKind.WEIGHTS:
        raise FieldError(
            "data_kind",
            dxo.data_kind,
            "must be the trained model: FLModel(params=model.state_dict())",
        )
    metrics = (dxo.meta or {}).get(MetaKey.INITIAL_METRICS)
    return (Release("model", model), *messages.read_metrics(_table(metrics)))


def write_reply(
    releases: Releases, layout: Layout, client: ClientSide, sealed: str = ""
) -> Shareable:
    """Make a result that holds only the releases and the seal of their receipt."""
    model, share = model_of(releases), next((r.value for r in releases if r.kind == "share"), None)
    if model is None and share is None:
        raise FieldError("releases", [r.kind for r in releases], "hold no model")
    own = {messages.SEAL: sealed} if sealed else {}
    meta = {
        messages.REPLY: {**messages.mark_of(client, count_of(releases) is not None), **own},
        MetaKey.INITIAL_METRICS: messages.metric_values(releases),
    }
    arrays = dict[str, Any]()
    if share is not None:
        arrays[SHARE] = share.numpy()
    if model is not None:
        arrays = _arrays(layout, model)
    reply: Shareable = DXO(DataKind.WEIGHTS, arrays, meta).to_shareable()
    return reply


def read_reply(result: Shareable, layout: Layout, client: ClientSide) -> Releases:
    """Read the releases of a protected result, after checking its mark.

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
    if client.trust == "secure sum":
        if list(dxo.data) != [SHARE]:
            raise FieldError(SHARE, len(dxo.data), "must be all that a reply to a secure sum holds")
        return (Release("share", messages.tensor_of(SHARE, dxo.data[SHARE])),)
    metrics = dxo.meta.get(MetaKey.INITIAL_METRICS)
    releases = messages.read_metrics(_table(metrics), counted)
    return (Release("model", _vector(layout, dxo.data)), *releases)


def read_seal(result: Shareable, partition: int) -> dict[int, str]:
    """Read the seal of a protected result, as a dict with its partition; empty without a seal."""
    return messages.seals_of(_dxo(result, "result").meta[messages.REPLY], partition)


def _hypothesis(place: int, name: str) -> str:
    """Return the name of a hypothesis's array in a message; those of the first hypothesis have the model's names."""
    if place == 0:
        return name
    return f"{OTHER}{place}|{name}"


def _of_hypothesis(key: str) -> tuple[int, str]:
    """Split an array's name in a message into the number of the hypothesis and the array's own name."""
    if not key.startswith(OTHER):
        return 0, key
    place, _, name = key.removeprefix(OTHER).partition("|")
    if not (place.isascii() and place.isdigit() and 0 < int(place[:4]) == int(place)):
        raise FieldError("hypotheses", key[:64], "must be named as FedVeilController names it")
    return int(place), name


def _arrays(layout: Layout, vector: Tensor) -> dict[str, Any]:
    arrays = {}
    for name, view in layout.views(vector.detach()).items():
        arrays[name] = view.contiguous().clone().numpy()
    return arrays


def _vector(layout: Layout, arrays: Mapping[str, Any]) -> Tensor:
    tensors = {name: messages.tensor_of(name, value) for name, value in arrays.items()}
    messages.require_shared(layout, {name: value.shape for name, value in tensors.items()})
    return layout.flatten({name: tensors[name] for name in layout.names if name in tensors})


def _table(values: Any) -> dict[str, Any]:
    """Return a value if it is a dict, else an empty dict."""
    if isinstance(values, dict):
        return values
    return {}


def _dxo(shareable: Shareable, what: str) -> DXO:
    try:
        dxo = from_shareable(shareable)
    except ValueError as error:
        raise FieldError(
            what, shareable.get_return_code(), "must hold the weights of a model"
        ) from error
    if not isinstance(dxo.data, dict):
        raise FieldError(what, kind_of(dxo.data), "must hold the weights of a model by name")
    return dxo
