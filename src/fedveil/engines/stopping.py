"""Early stopping by the released losses of validation clients, which never train."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from torch import Tensor

from fedveil import accounting
from fedveil.checks import Count, NonNegative, Parameters
from fedveil.engines.assembly import draw_cohort
from fedveil.engines.history import Best
from fedveil.engines.party import VALIDATE, LineStore, Party
from fedveil.learning import ClientData
from fedveil.mechanisms import Source
from fedveil.methods import Method
from fedveil.methods.publishing import Validation


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Parameters):
    """Early stopping: validation clients, frequency of validation, and stopping rule.

    Parameters
    ----------
    clients : sequence of ClientData or of tuples
        Clients ``(x, y)`` that never train. They share no record with training clients.
    patience : int
        Number of consecutive validations without a better loss after which the run ends.
    every : int
        Number of rounds between validations.
    sample : int, optional
        Number of validation clients asked each time, drawn anew. Default: all.
    min_delta : float
        Least fall of the loss that counts as better. Choose it as large as the noise on the loss, or chance decides.
    validation : Validation
        Protection of the released losses.
    allow_equal_rows : bool
        Whether equal rows of a training and a validation client are different records, as in data with few distinct
        rows. By default equal rows are refused.

    Examples
    --------
    >>> held = [(x[:40] + 1, y[:40])]  # of a fourth hospital, which never trains
    >>> rule = fv.EarlyStopping(clients=held, patience=2, validation=fv.Validation(losses="public"))
    >>> run = fv.Federation(
    ...     model=model, clients=clients, evaluation=fv.Evaluation(stopping=rule)
    ... ).run(2)
    >>> run.best.round in (1, 2)
    True
    """

    clients: Sequence[ClientData | Sequence[Any]] = field(default=(), repr=False, compare=False)
    patience: Count = 5
    every: Count = 1
    sample: Count | None = None
    min_delta: NonNegative = 0.0
    validation: Validation = field(default_factory=Validation)
    allow_equal_rows: bool = False

    def following(self, best: Best, loss: float, round_: int, models: Tensor) -> Best:
        """Return the best models so far, given the validation loss of a round's models [k, d]."""
        margin = self.min_delta if isfinite(best.loss) else 0.0
        if loss < best.loss - margin:
            return Best(loss, round_, 0, models.clone())
        return replace(best, waited=best.waited + 1)

    def ends(self, best: Best) -> str:
        """Return the reason why the run is over, or ""."""
        if best.waited < self.patience:
            return ""
        waited = f"no better validation loss in {best.waited} validations"
        return f"stopped early: {waited}; the best one is that of round {best.round}"


class Validator(Party):
    """Validation client: releases losses as far as policy and budget allow, and records each in its ledger.

    Parameters
    ----------
    method : Method
        Method of the run, for the policy's decision.
    policy : Policy, optional
        Policy of the client's owner.
    validation : Validation
        Protection of the released losses.
    ledger, source, budget, store
        See `Party`.

    Attributes
    ----------
    cap : int, optional
        Most releases in one run; None if the server is charged for them.
    """

    def __init__(
        self,
        method: Method,
        policy: accounting.Policy | None,
        validation: Validation,
        ledger: accounting.Ledger,
        source: Source,
        budget: accounting.SpendFilter | None,
        store: LineStore,
    ) -> None:
        super().__init__(ledger, source, budget, store)
        self._method, self.policy, self._validation = method, policy, validation
        self._trust = method.client.trust
        self.cap = cap_of(validation, self._trust)

    def declines(self, round_: int) -> str:
        """Return, before data are touched, the reason why the client sends no loss in this round; "" if it does.

        Under central trust the server is charged for the noise; policy and budget then count participations.
        """
        spend, public = self._validation.quote(self._trust), self._validation.losses == "public"
        if self.ledger.find((round_, VALIDATE)) is not None:
            return ""
        if self.policy is not None and public:
            return 'a policy allows no loss in the clear: set losses to "noised"'
        if self._trust != "central" or public:
            return self._forbidden(self._method, spend)  # the release is charged when it leaves
        if self.policy is None and self.budget is None:
            return ""
        if not self._charge(spend):
            return self._forbidden(self._method, spend) or "its budget is used up"
        self._commit(accounting.Entry((round_, VALIDATE), 0, accounting.digest(()), spend, "none"))
        return ""

    def send(self, loss: float, round_: int) -> float:
        """Release the loss of a round. For a round validated before it is the same number, or a new release with a new charge.

        Raises
        ------
        BudgetError
            If policy or budget do not allow another release.
        """
        drawn = self._draw(
            round_, VALIDATE, lambda source: self._validation.release(loss, self._trust, source)
        )
        return float(drawn[0].value)

    def spent(self, before: int) -> int:
        """Return the number of releases made before a round."""
        earlier = [
            entry
            for entry in self.ledger.entries
            if entry.key[1] == VALIDATE and entry.key[0] < before
        ]
        return len(earlier)

    def _charge(self, spend: accounting.Spend) -> bool:
        used_up = self.cap is not None and len(self.ledger.entries) >= self.cap
        return not used_up and not self._forbidden(self._method, spend) and super()._charge(spend)


def cap_of(validation: Validation, trust: accounting.Trust) -> int | None:
    """Return the most releases of a validation client in a run; None if the client is not charged for them."""
    if validation.losses == "noised" and trust != "central":
        return validation.releases
    return None


def drawn(rule: EarlyStopping, seed: int, round_: int, everybody: Sequence[int]) -> list[int]:
    """Draw the validation clients that are asked after a round; none if the round is not validated."""
    if round_ % rule.every or not everybody:
        return []
    return draw_cohort(seed, -round_, everybody, min(rule.sample or len(everybody), len(everybody)))
