"""FedVeil's aggregation rules as FLARE aggregators, for FLARE's own workflows and for swarms."""

from collections.abc import Mapping
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator as FlareAggregator
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.aggregation import (
    Aggregator,
    NoState,
    TrimmedMean,
    by_weight,
    capped_weights,
    even,
    withstands_weight,
)
from fedveil.engines.nvflare.late import OpenRounds
from fedveil.engines.nvflare.shareables import rule_of
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.logs import escaping
from fedveil.mechanisms import source_of

KINDS = ("WEIGHT_DIFF", "WEIGHTS")


class RuleAggregator(FlareAggregator):  # type: ignore[misc]
    """FLARE aggregator that combines the sites' results by a FedVeil rule.

    It adds no noise and promises nothing. The party that runs it (in a swarm a peer) sees the sites' results.

    Parameters
    ----------
    rule : str or dict
        Name in `fedveil.aggregation.AGGREGATORS`, or a dict of its ``name`` and options.
    sites : int
        Number of sites of the federation. A rule for more sites is refused.
    weights : dict of str to float, optional
        Declared, public sizes of all sites, by name. Default: equal weights.
    cap : float, optional
        Largest weight of a site, whatever its size; required with `weights`.
    expected_data_kind : {"WEIGHT_DIFF", "WEIGHTS"}
        Kind of the sites' results. From weights the workflow's current model is subtracted first.
    swarm : bool
        Whether the aggregating site changes with each round. A rule with a memory is then refused.

    Raises
    ------
    FieldError
        For a rule that cannot work here, with the reason.
    """

    def __init__(
        self,
        rule: str | dict[str, Any],
        sites: int,
        weights: dict[str, float] | None = None,
        cap: float | None = None,
        expected_data_kind: str = "WEIGHT_DIFF",
        swarm: bool = False,
    ) -> None:
        super().__init__()
        self.rule, self.sites = rule, require_count("sites", sites)
        self.weights, self.cap, self.swarm = weights, cap, swarm
        kind = getattr(
            expected_data_kind, "value", expected_data_kind
        )  # FLARE's own is an enumeration
        self.expected_data_kind = require_choice("expected_data_kind", kind, KINDS)
        self._rule = usable_rule(rule_of(rule), sites, weights, cap, swarm)
        self._state: Any = None
        self._received: dict[str, dict[str, Tensor]] = {}
        self._rounds = OpenRounds()

    def sensitivity(self, clip: float, relation: Relation = "zero-out") -> float | None:
        """Return a bound on the movement of the result if one site's update, of length at most `clip`, changes; None: no bound."""
        return self._rule.sensitivity(clip, self._weights_of(sorted(self.weights or ())), relation)

    @property
    def bears(self) -> int:
        """Largest number of malicious sites that the rule withstands."""
        if self.weights is None:
            return self._rule.withstands(self.sites)
        return min(
            withstands_weight(self._weights_of(sorted(self.weights))),
            self._rule.withstands(self.sites),
        )

    def reset(self, fl_ctx: FLContext) -> None:
        """Drop all received results."""
        self._received = {}

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Accept a site's update if it is usable; a second update of the site in a round is dropped, a swarm's late one too."""
        if self.swarm and self._rounds.late(shareable):
            return False
        try:
            site, arrays = self._read(shareable, fl_ctx)
        except (FieldError, ValueError) as error:
            escaping(self.logger).warning("FedVeil: a contribution is left out: %s", error)
            return False
        self._received[site] = arrays
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Combine the received updates by the rule; the result has the kind that the sites sent.

        Raises
        ------
        FieldError
            If fewer sites sent a usable update than the rule needs, or no set of arrays is shared by most sites.
        """
        received, self._received = self._agreeing(), {}
        self._rounds.close()
        names = sorted(received)
        if len(names) < max(1, self._rule.least):
            accepted = f"{type(self._rule).__name__} needs {max(1, self._rule.least)}"
            raise FieldError("contributions", len(names), accepted)
        start = self._start(fl_ctx, received[names[0]])
        floating = [name for name, value in start.items() if value.is_floating_point()]
        rows = torch.stack(
            [_flat(received[site], floating) - _flat(start, floating) for site in names]
        )
        zero = torch.zeros(rows.shape[1], dtype=rows.dtype)
        if self._state is None:
            self._state = self._rule.init(len(zero), rows.dtype)
        rule = self._rule.for_round(self._state, source_of(None))
        reduced = rule.reduce(rows, self._weights_of(names)).to(rows.dtype)
        step, self._state = rule.step(zero, reduced, self._state)
        result = _unflat(_flat(start, floating) + step, start, floating)
        for name in start:
            if name not in result:  # counters get the lower median, which is the value of some site
                result[name] = (
                    torch.stack([received[site][name] for site in names]).median(dim=0).values
                )
        arrays = {name: value.contiguous().numpy() for name, value in result.items()}
        reply: Shareable = DXO(DataKind(self.expected_data_kind), arrays).to_shareable()
        return reply

    def _read(self, shareable: Shareable, fl_ctx: FLContext) -> tuple[str, dict[str, Tensor]]:
        """Read the sender and the arrays of a result.

        Raises
        ------
        FieldError
            If the arrays cannot be used.
        """
        peer = fl_ctx.get_peer_context()
        own = fl_ctx.get_identity_name()
        site = str(own if peer is None else peer.get_prop(ReservedKey.IDENTITY_NAME) or own)
        if self.weights is not None and site not in self.weights:
            raise FieldError("site", site, "has no declared weight")
        if site in self._received:
            raise FieldError("site", site, "sent an update in this round before")
        if shareable.get_return_code() not in (None, ReturnCode.OK):
            raise FieldError("return_code", shareable.get_return_code(), "is no update")
        dxo = from_shareable(shareable)
        if dxo.data_kind != self.expected_data_kind or not isinstance(dxo.data, dict):
            raise FieldError("data_kind", dxo.data_kind, f"must be {self.expected_data_kind}")
        arrays = {str(name): torch.as_tensor(value) for name, value in dxo.data.items()}
        for name, value in arrays.items():
            if value.is_complex() or not _has_length(value):
                accepted = "must be finite real numbers, whose squares add up to one"
                raise FieldError(name, str(value.dtype), accepted)
        return site, arrays

    def _agreeing(self) -> dict[str, dict[str, Tensor]]:
        """Return the updates whose array names and shapes are those of more than half of the sites.

        Raises
        ------
        FieldError
            If no set of arrays has a majority.
        """
        kinds = {site: _kinds(arrays) for site, arrays in self._received.items()}
        for usual in kinds.values():
            agreeing = [site for site in kinds if kinds[site] == usual]
            if 2 * len(agreeing) > len(kinds):
                others = sorted(set(kinds) - set(agreeing))
                if others:
                    escaping(self.logger).warning(
                        "FedVeil: left out, with other arrays than most: %s", ", ".join(others)
                    )
                return {site: self._received[site] for site in agreeing}
        if kinds:
            self._received = {}
            accepted = "must be the same, in the same shapes, for more than half of those who sent"
            raise FieldError("arrays", f"of {len(kinds)} sites", accepted)
        return {}

    def _start(self, fl_ctx: FLContext, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the model that is subtracted from results: zeros for differences, the workflow's model for weights."""
        if self.expected_data_kind == "WEIGHT_DIFF":
            return {name: torch.zeros_like(value) for name, value in like.items()}
        model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) or {}
        arrays = model.get(ModelLearnableKey.WEIGHTS) or {}
        start = {}
        for name, value in like.items():
            if name not in arrays:
                accepted = (
                    "is not in the workflow's model: let the sites send differences (WEIGHT_DIFF)"
                )
                raise FieldError("global_model", name, accepted)
            start[name] = torch.as_tensor(arrays[name]).to(value.dtype).reshape(value.shape)
        return start

    def _weights_of(self, names: list[str]) -> Tensor:
        """Return the weights of the named sites: declared ones under the cap, or equal ones."""
        if self.weights is None or self.cap is None:
            return even(len(names) or self.sites)
        declared = [self.weights[name] for name in names]
        return capped_weights(declared, max(self.cap, 1 / len(declared)))


def usable_rule(
    rule: Aggregator,
    sites: int,
    weights: Mapping[str, float] | None,
    cap: float | None,
    swarm: bool,
) -> Aggregator:
    """Return a rule after checking that a FLARE aggregator of this many sites can use it.

    Raises
    ------
    FieldError
        For a rule that needs more sites or a server's training; for unusable weights; for a rule with a memory in a
        swarm.
    """
    name = type(rule).__name__
    if rule.least > sites:
        raise FieldError(
            "rule", name, f"refused for n: it needs {rule.least} sites, and there are {sites}"
        )
    if weights is None:
        require_cut(rule, sites)
    if rule.needs:
        accepted = (
            "needs the aggregator's own training on public data: use FedVeilController(public=...)"
        )
        raise FieldError("rule", name, accepted)
    if rule.by_examples:
        raise FieldError(
            "weighting", "examples", "counts are private here: declare weights with a cap"
        )
    if swarm and _remembers(rule):
        accepted = "remembers earlier rounds, and in a swarm another site aggregates each round"
        raise FieldError("rule", name, accepted)
    if (weights is None) != (cap is None):
        raise FieldError(
            "cap",
            cap,
            "goes with weights: the largest weight that a site may have, whatever its size",
        )
    if weights is None:
        return rule
    if len(weights) != sites:
        raise FieldError(
            "weights", sorted(weights), f"must be declared for each of the {sites} sites"
        )
    capped_weights(list(weights.values()), 1.0 if cap is None else cap)
    return by_weight(rule)


def require_cut(rule: Aggregator, sites: int) -> None:
    """Refuse a trimmed mean that cuts off nobody among so many sites: it would be the plain mean.

    Raises
    ------
    FieldError
        If its fraction is below one site's share.
    """
    if isinstance(rule, TrimmedMean) and rule.cuts_nobody(sites):
        accepted = f"cuts off nobody among {sites} sites, which is the plain mean: 1 / {sites} is the least"
        raise FieldError("fraction", rule.fraction, accepted)


def _remembers(rule: Aggregator) -> bool:
    if getattr(rule, "remember", True) is False:
        return False
    return not isinstance(rule.init(1, torch.float32), NoState)


def _kinds(arrays: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (value.dtype, tuple(value.shape)) for name, value in arrays.items()}


def _has_length(value: Tensor) -> bool:
    """Whether an array's length, and four times that length, are finite in float64."""
    return bool(torch.linalg.vector_norm(value.reshape(-1).to(torch.float64) * 4).isfinite())


def _flat(arrays: Mapping[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([arrays[name].reshape(-1).to(torch.float64) for name in names])


def _unflat(vector: Tensor, like: Mapping[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    result, start = {}, 0
    for name in names:
        value = like[name]
        result[name] = vector[start : start + value.numel()].reshape(value.shape).to(value.dtype)
        start += value.numel()
    return result
