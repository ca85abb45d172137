"""Conversion of broadcasts, replies and facts to Flower records, bit for bit.

A request holds each hypothesis as named arrays ("arrays", then "arrays.1", ...), Flower's own "config" and the public
facts. A client's training code answers with "arrays", "metrics" and, if the method needs them, facts. The reply is
rebuilt from the protected releases only, and marked.

Flower keeps a context for each node through a run. It holds the client's memory: the method's state, the last releases,
and lines of the ledger. For a ledger of this run these are all lines, for a lifetime ledger (a file) only the last one.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, cast, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch import Tensor

from fedveil.accounting import Release, count_of, model_of
from fedveil.accounting.ledger import Kind
from fedveil.engines import messages
from fedveil.engines.deployed import ClientMemory
from fedveil.engines.states import pack, unpack
from fedveil.errors import FieldError, kind_of, require_choice
from fedveil.layout import Layout
from fedveil.learning.local import Trained
from fedveil.methods import Broadcast, ClientFacts, ClientSide, NoisySteps, Releases

ARRAYS, CONFIG = "arrays", "config"
FACTS, HELLO = "fedveil.facts", "fedveil.hello"
BESIDE = "fedveil.beside"  # in a request: the first arrays' entries that are not shared
BUFFERS = "fedveil.buffers"  # in a node's context; never sent
SUM, SHARE = (
    "fedveil.sum",
    "fedveil.share",
)  # in a secure sum: the result of training for the mod, and the release of the site
REFUSED, FAILED = 901, 902  # codes of the mod's error replies: declined to take part, or failed


def to_arrays(layout: Layout, vector: Tensor) -> ArrayRecord:
    """Convert a vector [d] to named arrays, for ``load_state_dict(..., strict=False)``."""
    if vector.dim() != 1:
        raise FieldError("vector", tuple(vector.shape), f"must be [d] = [{layout.size}]")
    sent = layout.sent
    return array_record({sent[name]: value for name, value in layout.views(vector).items()})


def array_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Convert named tensors to a record; each keeps its number type."""
    return ArrayRecord(
        {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()}
    )


def tensors_in(content: RecordDict, name: str) -> dict[str, Tensor]:
    """Return the named tensors of a record; empty if it is missing or holds something else."""
    record = content.get(name)
    arrays = record.items() if isinstance(record, ArrayRecord) else ()
    return {name: messages.tensor_of(name, array.numpy()) for name, array in arrays}


def values_in(content: RecordDict, name: str) -> dict[str, Any]:
    """Return the plain values of a record; empty if it is missing or holds something else."""
    record = content.get(name)
    return dict(record) if isinstance(record, ConfigRecord) else {}


def from_arrays(layout: Layout, arrays: ArrayRecord) -> Tensor:
    """Join named arrays to one vector [d].

    Raises
    ------
    FieldError
        For an array that is missing, has another shape, or is not declared by the layout.
    """
    own = {sent: name for name, sent in layout.sent.items()}
    named = {own.get(name, name): array for name, array in arrays.items()}
    messages.require_shared(layout, {name: array.shape for name, array in named.items()})
    return layout.flatten(
        {n: messages.tensor_of(n, named[n].numpy()) for n in layout.names if n in named}
    )


def beside(layout: Layout, arrays: ArrayRecord) -> ArrayRecord:
    """Return the arrays of a record that the layout declares but does not share: frozen, constant or kept ones."""
    declared = {*layout.kept, *layout.constants}
    return ArrayRecord({name: array for name, array in arrays.items() if name in declared})


def complete(content: RecordDict, layout: Layout, state: RecordDict) -> None:
    """Add to a request, in place, the arrays that are not shared: the node's own, or else those that the server sent.

    Then the app's strict ``load_state_dict`` finds all entries of its model.
    """
    sent, own = content.get(BESIDE), state.get(BUFFERS)
    if not isinstance(sent, ArrayRecord):
        return
    kept = own if isinstance(own, ArrayRecord) else {}
    more = {name: kept.get(name, array) for name, array in beside(layout, sent).items()}
    for name, record in list(content.array_records.items()):
        if name == ARRAYS or name.startswith(f"{ARRAYS}."):
            content[name] = ArrayRecord({**record, **more})


def keep(content: RecordDict, request: RecordDict, layout: Layout, state: RecordDict) -> None:
    """Save the unshared arrays that training changed (such as running statistics) for the node's next round.

    Parameters
    ----------
    content : RecordDict
        Answer of training code.
    request : RecordDict
        Request to training code; an array that equals the request's is not saved.
    layout : Layout
        Layout, which declares the entries to keep.
    state : RecordDict
        State of the node's context.
    """
    arrays, sent = content.get(ARRAYS), request.get(BESIDE)
    if not isinstance(arrays, ArrayRecord) or not isinstance(sent, ArrayRecord):
        return
    trained = {name: arrays[name] for name in layout.kept if name in arrays}
    changed = {name: array for name, array in trained.items() if array != sent.get(name)}
    if changed:
        state[BUFFERS] = ArrayRecord(changed)


def write_broadcast(
    broadcast: Broadcast,
    layout: Layout,
    config: ConfigRecord | None = None,
    more: ArrayRecord | None = None,
) -> RecordDict:
    """Make the content of a request from a broadcast; `more` are unshared arrays that nodes need."""
    content = RecordDict(
        {_hypothesis(j): to_arrays(layout, m) for j, m in enumerate(broadcast.models)}
    )
    content[CONFIG] = ConfigRecord({**(config or {}), "server-round": broadcast.public.round})
    content[messages.PUBLIC] = ConfigRecord(messages.public_values(broadcast))
    if more:
        content[BESIDE] = more
    return content


def read_broadcast(content: RecordDict, layout: Layout) -> Broadcast:
    """Read the broadcast in a request: the hypotheses [k, d] and the public facts.

    Raises
    ------
    FieldError
        If the request does not come from `FedVeilStrategy`, or is for another layout.
    """
    facts = content.get(messages.PUBLIC)
    if not isinstance(facts, ConfigRecord):
        raise FieldError(
            messages.PUBLIC,
            None,
            "is missing from the request: the server must run FedVeilStrategy",
        )
    public, count = messages.read_public(facts, layout)
    models = []
    for name in map(_hypothesis, range(count)):
        record = content.get(name)
        if not isinstance(record, ArrayRecord):
            raise FieldError(name, None, "the request lacks it")
        models.append(from_arrays(layout, record))
    return Broadcast(models=torch.stack(models), public=public)


def write_facts(
    chosen: int = 0,
    layer_scores: Mapping[str, float] | None = None,
    noised: NoisySteps | None = None,
) -> ConfigRecord:
    """Make the record of facts that training code puts under `FACTS` in its reply; the privacy mod removes it.

    Parameters
    ----------
    chosen : int
        Index of the trained hypothesis.
    layer_scores : mapping of str to float, optional
        Score of each layer (module), for FedRE.
    noised : NoisySteps, optional
        Noise inside training, for record-level privacy: `Trained.noised`.
    """
    record = ConfigRecord({"chosen": int(chosen)})
    if noised is not None:
        record["noised"] = [float(getattr(noised, f.name)) for f in fields(NoisySteps)]
    if layer_scores is not None:
        record["layers"] = list(layer_scores)
        record["scores"] = [float(s) for s in layer_scores.values()]
    return record


def write_trained(trained: Trained, layout: Layout) -> RecordDict:
    """Make training code's reply from a trainer's result: the model, or a step on the grid of a secure sum.

    Parameters
    ----------
    trained : Trained
        Result of `fedveil.learning.PrivateTrainer` or another trainer.
    layout : Layout
        Layout, which names the arrays.
    """
    facts = write_facts(noised=trained.noised)
    if trained.total is not None:
        return RecordDict({SUM: array_record({SUM: trained.total}), FACTS: facts})
    metrics = MetricRecord({messages.COUNT: trained.examples, "train_loss": trained.loss})
    return RecordDict(
        {ARRAYS: to_arrays(layout, trained.model), messages.METRICS_KEY: metrics, FACTS: facts}
    )


def read_sum(content: RecordDict) -> Releases:
    """Read the sum in training code's reply; empty without one. The mod replaces it by a share for the server."""
    return _read_integers(content, SUM, "sum")


def read_share(content: RecordDict) -> Releases:
    """Read the share of a secure sum in a protected reply; everything else is ignored."""
    return _read_integers(content, SHARE, "share")


def _read_integers(content: RecordDict, name: str, kind: Literal["sum", "share"]) -> Releases:
    tensors = tensors_in(content, name)
    return (Release(kind, tensors[name]),) if list(tensors) == [name] else ()


def _converted(field: str, kind: Callable[[Any], Any], value: Any) -> Any:
    """Convert a number to another kind; refuse a whole number beyond all floats."""
    try:
        return kind(value)
    except OverflowError:
        raise FieldError(field, value, "must be numbers that a float can hold") from None


def read_facts(content: RecordDict, layout: Layout, broadcast: Broadcast) -> ClientFacts:
    """Read the facts in training code's reply; without them the first hypothesis counts as chosen, without scores."""
    record = content.get(FACTS, ConfigRecord({"chosen": 0}))
    if not isinstance(record, ConfigRecord):
        raise FieldError(FACTS, kind_of(record), "must be what write_facts returns")
    for key in record:
        require_choice(FACTS, key, ("chosen", "layers", "scores", "noised"))
    chosen, scores = messages.whole(FACTS, "chosen", record), None
    if not 0 <= chosen < len(broadcast.models):
        raise FieldError(
            "chosen", chosen, f"must be the index of one of {len(broadcast.models)} hypotheses"
        )
    names, values = record.get("layers"), record.get("scores")
    if names is not None or values is not None:
        if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
            raise FieldError(
                FACTS, [names, values], "layers and scores must be lists of one length"
            )
        scores = {
            str(n): _converted("scores", float, v)
            for n, v in zip(names, values, strict=True)
            if isinstance(v, int | float)
        }
    noised = None
    if "noised" in record:
        marks = record["noised"]
        if not isinstance(marks, list) or len(marks) != len(fields(NoisySteps)):
            raise FieldError("noised", marks, "must be what write_facts makes of Trained.noised")
        kinds = get_type_hints(NoisySteps)
        made = {
            field.name: _converted("noised", kinds[field.name], mark)
            for field, mark in zip(fields(NoisySteps), marks, strict=True)
        }
        noised = NoisySteps(**made)
    return ClientFacts(
        broadcast=broadcast, layout=layout, chosen=chosen, layer_scores=scores, noised=noised
    )


def read_releases(content: RecordDict, layout: Layout, counted: bool = True) -> Releases:
    """Read the known releases in a reply: the model, the count (if `counted`), and scalar metrics. Others are ignored."""
    releases_read: list[Release] = []
    arrays, metrics = content.get(ARRAYS), content.get(messages.METRICS_KEY)
    if isinstance(arrays, ArrayRecord):
        releases_read.append(Release("model", from_arrays(layout, arrays)))
    if isinstance(metrics, MetricRecord):
        releases_read += messages.read_metrics(metrics, counted)
    return tuple(releases_read)


def write_reply(
    releases: Releases, layout: Layout, partition: int, client: ClientSide, sealed: str = ""
) -> RecordDict:
    """Make a protected reply: the releases, the mod's mark, the seal, and a count of 1 if no count may leave."""
    model = model_of(releases)
    content = RecordDict({} if model is None else {ARRAYS: to_arrays(layout, model)})
    for share in (r.value for r in releases if r.kind == "share"):
        content[SHARE] = array_record({SHARE: share})
    content[messages.METRICS_KEY] = MetricRecord(messages.metric_values(releases))
    own = {messages.SEAL: sealed} if sealed else {}
    content[messages.REPLY] = write_mark(partition, client, count_of(releases) is not None, **own)
    return content


def write_mark(
    partition: int, client: ClientSide, counted: bool = False, **own: Any
) -> ConfigRecord:
    """Make the mark of a protected reply, with the partition and the method.

    The answer to a greeting also has a site's public key, ``site``, and ``validates`` if the node only validates.
    """
    return ConfigRecord({"partition-id": partition, **messages.mark_of(client, counted), **own})


def read_mark(content: RecordDict, client: ClientSide) -> tuple[int, bool]:
    """Return the partition of a marked reply, and whether its count was released.

    Raises
    ------
    UnprotectedError
        If the mod did not run, or ran with another method than the server's.
    """
    mark = values_in(content, messages.REPLY)
    if not mark or FACTS in content:
        what = f"{FACTS!r} is still in it" if FACTS in content else f"it lacks {messages.REPLY!r}"
        raise messages.UnprotectedError(
            f"a reply was not protected ({what}): put fedveil.flower.privacy_mod first in its mods"
        )
    counted = messages.require_mark(mark, client)
    return messages.whole(messages.REPLY, "partition-id", mark), counted


def _hypothesis(j: int) -> str:
    return ARRAYS if j == 0 else f"{ARRAYS}.{j}"


STATE, VALUES, LEDGER, KEPT = "fedveil.state", "fedveil.values", "fedveil.ledger", "fedveil.kept"
BEGUN = "fedveil.begun"
OWN = (STATE, VALUES, LEDGER, KEPT)  # records of the mod, not of the app


class Memory(ClientMemory):
    """Memory of one client, in its node's context.

    Parameters
    ----------
    context : Context
        Context of the node.
    """

    def __init__(self, context: Context) -> None:
        self._state = context.state

    @property
    def lines(self) -> list[str]:
        return list(values_in(self._state, LEDGER).get("lines", []))

    @lines.setter
    def lines(self, lines: list[str]) -> None:
        self._state[LEDGER] = ConfigRecord({"lines": lines})

    @property
    def begun(self) -> bool:
        """Whether the node was already asked to train in this run."""
        return BEGUN in self._state

    @begun.setter
    def begun(self, value: bool) -> None:
        self._state[BEGUN] = ConfigRecord({"begun": value})

    def load(self, fresh: Any) -> Any:
        plain = values_in(self._state, VALUES)
        same = plain.pop("kind", None) == type(fresh).__name__
        return unpack(fresh, tensors_in(self._state, STATE), plain) if same else fresh

    def kept(self) -> tuple[int, Releases]:
        records = []
        for name, value in tensors_in(self._state, KEPT).items():
            _, kind, label = name.split("|", 2)
            records.append(Release(cast(Kind, kind), value, label))
        return values_in(self._state, VALUES).get("kept", 0), tuple(records)

    def save(self, state: Any, kept: tuple[int, Releases] = (0, ())) -> None:
        named = {f"{i}|{r.kind}|{r.name}": r.value for i, r in enumerate(kept[1])}
        tensors, values = pack(state)
        self._state[KEPT], self._state[STATE] = array_record(named), array_record(tensors)
        self._state[VALUES] = ConfigRecord(
            {"kind": type(state).__name__, "kept": kept[0], **values}
        )
