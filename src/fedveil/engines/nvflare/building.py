"""Methods, rules and models from what a job's or a site's JSON can say."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedveil.aggregation import AGGREGATORS, Aggregator
from fedveil.engines.assembly import initial_broadcast
from fedveil.errors import FieldError, require_choice
from fedveil.layout import Buffers, Layout
from fedveil.learning.models import MODELS
from fedveil.methods import Method, build, require_method


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
