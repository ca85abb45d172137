"""Validation under FLARE: sites that only release losses and never train, and early stopping by these losses."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from torch import Tensor

from fedveil.accounting import Ledger
from fedveil.engines import messages
from fedveil.engines.history import Best
from fedveil.engines.nvflare.pending import RunMemory, known_code
from fedveil.engines.party import VALIDATE, VALIDATORS
from fedveil.engines.server import ServerParty
from fedveil.engines.stopping import EarlyStopping, Validator, cap_of, drawn
from fedveil.errors import FedVeilError, FieldError, require_a
from fedveil.methods import Broadcast
from fedveil.methods.publishing import Validation

VALIDATION_TASK = "fedveil_validate"
LOSS = "loss"


def stopping_of(given: Mapping[str, Any]) -> EarlyStopping:
    """Build an early stopping from plain values; the validating sites are given separately.

    Raises
    ------
    FieldError
        For an unknown or invalid option.
    """
    require_a(
        "stopping",
        given,
        Mapping,
        'must be a table: {"patience": 3, "validation": {"losses": "noised"}}',
    )
    values = dict(given)
    if "clients" in values:
        raise FieldError(
            "stopping.clients", values["clients"], "are sites under FLARE: name them in validators"
        )
    validation = validation_of(values.pop("validation", {}))
    return EarlyStopping(**values, validation=validation)


def validation_of(given: Mapping[str, Any]) -> Validation:
    """Build the options of released losses from plain values."""
    require_a(
        "validation",
        given,
        Mapping,
        'must be a table: {"losses": "noised", "noise_multiplier": 2.0}',
    )
    return Validation(**given)


class ValidatorMemory(RunMemory):
    """Memory of a validating site for one job; its ledger has another name than those of training sites."""

    def ledger(self, run: str, partition: int) -> Ledger:
        """Return the ledger of this run."""
        return Ledger.parse(run, f"{VALIDATORS}{partition}", self.lines)


@dataclass(frozen=True)
class PendingLoss:
    """Task of a site that only validates, on its way through the executor.

    Attributes
    ----------
    party : Validator
        Party that is charged for the loss.
    broadcast : Broadcast
        Broadcast with the models [k, d] of a round.
    measure : callable
        Function ``models -> losses`` [k] on the site's data.
    open : ExitStack
        Context that holds the ledger open.
    losses : list of float
        Measured losses.
    """

    party: Validator
    broadcast: Broadcast
    validation: Validation
    central: bool
    measure: Callable[[Tensor], Tensor]
    open: ExitStack
    losses: list[float] = field(default_factory=list)

    def train(self) -> None:
        """Measure the loss without training; any failure counts as the largest declared loss."""
        try:
            measured = self.measure(self.broadcast.models)
            self.losses[:] = [float(torch.nan_to_num(measured, nan=inf).min())]
        except Exception:
            self.losses[:] = [inf]

    def answer(self, result: Shareable) -> Shareable:
        """Protect the loss, record its cost, and make the result to send."""
        if result.get_return_code() != ReturnCode.OK or not self.losses:
            return make_reply(known_code(result))
        [loss] = self.losses
        if (
            self.central and self.validation.losses == "noised"
        ):  # the server adds the noise and pays for it
            sent = loss if isfinite(loss) else self.validation.loss_range
        else:
            sent = self.party.send(loss, self.broadcast.public.round)
        reply: Shareable = DXO(
            DataKind.METRICS, {LOSS: sent}, {messages.REPLY: {"validates": True}}
        ).to_shareable()
        return reply

    def restore(self, fl_ctx: FLContext) -> None:
        """Do nothing, as no foreign code ran."""


def require_due(party: Validator, ledger: Ledger, round_: int, bounded: bool) -> None:
    """Refuse, before data are touched, a request for a loss that the site does not send.

    Raises
    ------
    FedVeilError
        If it sends none; the text is for the site's own log.
    """
    reason = party.declines(round_)
    made = ledger.entries if bounded else ledger.all_entries
    if party.cap is not None and sum(entry.key[1] == VALIDATE for entry in made) >= party.cap:
        reason = f"all {party.cap} losses were sent: only a policy with a total, or a budget, allows more runs"
    if reason:
        raise FedVeilError(reason)


class ServerStopping:
    """Early stopping at the server: choose sites that report a loss, and decide when the run ends.

    Parameters
    ----------
    rule : EarlyStopping
        Rule of early stopping.
    names : list of str
        Names of the validating sites.
    seed : int
        Seed for the choice of sites.
    server : ServerParty
        Server; under central trust its ledger is charged for the noise.
    """

    def __init__(
        self, rule: EarlyStopping, names: list[str], seed: int, server: ServerParty
    ) -> None:
        self.rule, self.names, self.best = rule, sorted(names), Best()
        self._seed, self._server = seed, server
        self._asked = dict.fromkeys(range(len(self.names)), 0)
        self._central = server.method.client.trust == "central"

    @property
    def stopped(self) -> str:
        """Reason why the run is over, or ""."""
        return self.rule.ends(self.best)

    def due(self, round_: int) -> list[str]:
        """Draw the sites to ask after a round, among those with losses left to send."""
        cap = cap_of(self.rule.validation, self._server.method.client.trust)
        allowed = [place for place, asked in self._asked.items() if cap is None or asked < cap]
        places = drawn(self.rule, self._seed, round_, allowed)
        for place in places:
            self._asked[place] += 1
        return [self.names[place] for place in places]

    def take(self, losses: list[float], round_: int, models: Tensor) -> float | None:
        """Process the losses that arrived after a round, and return the released loss; None without one."""
        if not losses:
            return None
        if self._central and self.rule.validation.losses != "public":
            value = self._server.validate(
                round_, torch.tensor(losses, dtype=torch.float64), self.rule.validation
            )
        else:
            value = sum(losses) / len(losses)
        if value is not None:
            self.best = self.rule.following(self.best, value, round_, models)
        return value


def read_loss(result: Shareable | None) -> float | None:
    """Read the loss in a validating site's reply; None in any other reply."""
    if result is None or result.get_return_code() != ReturnCode.OK:
        return None
    try:
        dxo = from_shareable(result)
        mark = (dxo.meta or {}).get(messages.REPLY)
        loss = dxo.data[LOSS]
    except (ValueError, TypeError, KeyError):
        return None
    if dxo.data_kind != DataKind.METRICS or mark != {"validates": True} or isinstance(loss, bool):
        return None
    return float(loss) if isinstance(loss, int | float) else None
