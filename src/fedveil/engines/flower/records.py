"""Broadcasts, replies and facts as Flower records, bit for bit.

A request holds each hypothesis as named arrays ("arrays", then "arrays.1", ...), Flower's own "config" and the public
facts. A client's training code answers with "arrays", "metrics" and, where the method needs them, facts; what leaves
the client is rebuilt from the protected releases alone, and marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedveil.accounting import Release, count_of, model_of
from fedveil.errors import FedVeilError, FieldError, nearest, require_count
from fedveil.layout import Layout
from fedveil.methods import Broadcast, ClientFacts, ClientSide, NoisySteps, PublicFacts, Releases

ARRAYS, CONFIG, METRICS, COUNT = "arrays", "config", "metrics", "num-examples"
PUBLIC, FACTS, REPLY, HELLO = "fedveil.public", "fedveil.facts", "fedveil.reply", "fedveil.hello"
INDEX = "fedveil.index"  # of the hypothesis that IFCA reports, beside the metrics
MOST_METRICS = 64
REFUSED, FAILED = 901, 902  # codes of the mod's error replies: declined to take part, or failed


class UnprotectedError(FedVeilError):
    """A client answered without the privacy mod: nothing of its reply may be used."""


def to_arrays(layout: Layout, vector: Tensor) -> ArrayRecord:
    """Named arrays of one vector [d], in the vector's own type, for ``load_state_dict(..., strict=False)``."""
    if vector.dim() != 1:
        raise FieldError("vector", tuple(vector.shape), f"must be [d] = [{layout.size}]")
    views = layout.views(vector.detach())
    return ArrayRecord({name: Array(view.contiguous().numpy()) for name, view in views.items()})


def from_arrays(layout: Layout, arrays: ArrayRecord) -> Tensor:
    """One vector [d] of named arrays.

    Raises
    ------
    FieldError
        For an array that is missing, has another shape, or is not declared by the layout.
    """
    for name, array in arrays.items():
        if name not in layout.shapes and name not in layout.kept:
            raise FieldError(
                name,
                tuple(array.shape),
                "is not part of the layout, so it would leave without protection: send to_arrays(layout, "
                'layout.read(model)), or lay the model out with Layout.from_module(model, buffers="keep") to keep '
                "running statistics and counters on each client",
            )
    return layout.flatten({n: torch.from_numpy(np.asarray(arrays[n].numpy())) for n in layout.names if n in arrays})


def write_broadcast(broadcast: Broadcast, layout: Layout, config: ConfigRecord | None = None) -> RecordDict:
    """The content of a request."""
    content = RecordDict({_hypothesis(j): to_arrays(layout, m) for j, m in enumerate(broadcast.models)})
    facts: dict[str, Any] = {"hypotheses": len(broadcast.models)}
    for f in fields(PublicFacts):
        value = getattr(broadcast.public, f.name)
        if value is not None:
            facts[f.name] = list(value) if isinstance(value, tuple) else value
    content[CONFIG] = ConfigRecord({**(config or {}), "server-round": broadcast.public.round})
    content[PUBLIC] = ConfigRecord(facts)
    return content


def read_broadcast(content: RecordDict, layout: Layout) -> Broadcast:
    """What a request broadcasts: the hypotheses [k, d] and the public facts.

    Raises
    ------
    FieldError
        If the request does not come from `FedVeilStrategy`, or for another layout.
    """
    facts = content.get(PUBLIC)
    if not isinstance(facts, ConfigRecord):
        raise FieldError(PUBLIC, None, "is missing from the request: the server must run FedVeilStrategy")
    known = [f.name for f in fields(PublicFacts)]
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()}
    count = _whole(PUBLIC, "hypotheses", facts)
    del values["hypotheses"]
    for name in values:
        if name not in known:
            raise FieldError(PUBLIC, name, nearest(name, known))
    for name in ("round", "rounds", "cohort", "dimension"):
        _whole(PUBLIC, name, facts)
    public = PublicFacts(**values)
    if public.dimension != layout.size:
        raise FieldError("dimension", public.dimension, f"the client's layout has {layout.size} parameters")
    models = []
    for name in map(_hypothesis, range(require_count("hypotheses", count))):
        record = content.get(name)
        if not isinstance(record, ArrayRecord):
            raise FieldError(name, None, "is missing from the request")
        models.append(from_arrays(layout, record))
    return Broadcast(models=torch.stack(models), public=public)


def write_facts(
    chosen: int = 0, layer_scores: Mapping[str, float] | None = None, noised: NoisySteps | None = None
) -> ConfigRecord:
    """The record that training code puts under `FACTS` in its reply; the mod removes it.

    Parameters
    ----------
    chosen : int
        The hypothesis that was trained.
    layer_scores : mapping of str to float, optional
        Score of each layer (module), for FedRE.
    noised : NoisySteps, optional
        The noise inside training, for record-level privacy: `Trained.noised`.
    """
    record = ConfigRecord({"chosen": int(chosen)})
    if noised is not None:
        record["noised"] = [float(getattr(noised, f.name)) for f in fields(NoisySteps)]
    if layer_scores is not None:
        record["layers"] = list(layer_scores)
        record["scores"] = [float(s) for s in layer_scores.values()]
    return record


def read_facts(content: RecordDict, layout: Layout, broadcast: Broadcast) -> ClientFacts:
    """The facts in a training reply (without the record: hypothesis 0, no scores)."""
    record = content.get(FACTS, ConfigRecord({"chosen": 0}))
    if not isinstance(record, ConfigRecord):
        raise FieldError(FACTS, type(record).__name__, "must be what write_facts returns")
    for key in record:
        if key not in ("chosen", "layers", "scores", "noised"):
            raise FieldError(FACTS, key, nearest(key, ("chosen", "layers", "scores", "noised")))
    chosen, scores = _whole(FACTS, "chosen", record), None
    if not 0 <= chosen < len(broadcast.models):
        raise FieldError("chosen", chosen, f"must be the index of one of {len(broadcast.models)} hypotheses")
    names, values = record.get("layers"), record.get("scores")
    if names is not None or values is not None:
        if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
            raise FieldError(FACTS, [names, values], "layers and scores must be lists of one length")
        scores = {str(n): float(v) for n, v in zip(names, values, strict=True) if isinstance(v, int | float)}
    noised = None
    if "noised" in record:
        marks = record["noised"]
        if not isinstance(marks, list) or len(marks) != len(fields(NoisySteps)):
            raise FieldError("noised", marks, "must be what write_facts makes of Trained.noised")
        steps, rate, clip, deviation, denominator, public, summed, lr = (float(v) for v in marks)
        noised = NoisySteps(
            steps=int(steps),
            rate=rate,
            clip=clip,
            deviation=deviation,
            denominator=denominator,
            public_size=bool(public),
            summed=bool(summed),
            lr=lr,
        )
    return ClientFacts(broadcast=broadcast, layout=layout, chosen=chosen, layer_scores=scores, noised=noised)


def read_releases(content: RecordDict, layout: Layout, counted: bool = True) -> Releases:
    """The known releases of a reply, by allow-list: the model, the count (if `counted`), scalar metrics."""
    found: list[Release] = []
    arrays, metrics = content.get(ARRAYS), content.get(METRICS)
    if isinstance(arrays, ArrayRecord):
        found.append(Release("model", from_arrays(layout, arrays)))
    if isinstance(metrics, MetricRecord):
        if counted and isinstance(metrics.get(COUNT), int | float):
            found.append(Release("count", _scalar(metrics[COUNT])))
        if isinstance(metrics.get(INDEX), int | float):
            found.append(Release("index", _scalar(metrics[INDEX])))
        named = [(n, v) for n, v in metrics.items() if n not in (COUNT, INDEX) and isinstance(v, int | float)]
        if len(named) > MOST_METRICS or not all(name.isprintable() and len(name) <= 64 for name, _ in named):
            accepted = f"at most {MOST_METRICS}, each named by at most 64 printable characters"
            raise FieldError(METRICS, len(named), accepted)
        found += [Release("metric", _scalar(value), name) for name, value in named]
    return tuple(found)


def write_reply(releases: Releases, layout: Layout, partition: int, client: ClientSide) -> RecordDict:
    """The content of a reply: the releases, a count of 1 where none may leave, and the mod's mark."""
    model, count = model_of(releases), count_of(releases)
    content = RecordDict({} if model is None else {ARRAYS: to_arrays(layout, model)})
    number = 1 if count is None else int(count) if count.is_integer() else count
    shown = [r for r in releases if r.kind in ("index", "metric")]
    metrics = {INDEX if r.kind == "index" else r.name: float(r.value) for r in shown}
    content[METRICS] = MetricRecord({COUNT: number, **metrics})
    content[REPLY] = write_mark(partition, client, count is not None)
    return content


def write_mark(partition: int, client: ClientSide, counted: bool = False) -> ConfigRecord:
    """What says that the mod ran, for whom, and how."""
    return ConfigRecord(
        {"partition-id": partition, "side": type(client).__name__, "trust": client.trust, "counted": counted}
    )


def read_mark(content: RecordDict, client: ClientSide) -> tuple[int, bool]:
    """Partition of a marked reply, and whether its count was released.

    Raises
    ------
    UnprotectedError
        If the mod did not run, or ran with another method than the server's.
    """
    mark = content.get(REPLY)
    if not isinstance(mark, ConfigRecord) or FACTS in content:
        what = f"{FACTS!r} is still in it" if FACTS in content else f"it lacks {REPLY!r}"
        raise UnprotectedError(
            f"a reply was not protected ({what}): put fedveil.flower.privacy_mod(...) first in ClientApp(mods=[...])"
        )
    expected = (type(client).__name__, client.trust)
    if (mark.get("side"), mark.get("trust")) != expected:
        found = f"{mark.get('side')!r} ({mark.get('trust')!r} trust)"
        wanted = f"{expected[0]!r} ({expected[1]!r} trust)"
        raise UnprotectedError(f"a client protects as {found}, the server expects {wanted}: give both the same method")
    return _whole(REPLY, "partition-id", mark), mark.get("counted") is True


def _hypothesis(j: int) -> str:
    return ARRAYS if j == 0 else f"{ARRAYS}.{j}"


def _scalar(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _whole(record: str, key: str, values: ConfigRecord) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"{record}: {key}", value, "must be a whole number")
    return value
