"""Early stopping on validation clients: clients that never train, and whose losses are releases."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from fedveil import accounting
from fedveil.checks import Count, NonNegative, Parameters
from fedveil.engines.assembly import draw_cohort
from fedveil.engines.history import Best
from fedveil.engines.party import VALIDATE, LineStore, Party
from fedveil.engines.server import ServerParty
from fedveil.errors import BudgetError, FieldError
from fedveil.learning import ClientData, client_losses
from fedveil.learning.learner import Learner
from fedveil.mechanisms import Source
from fedveil.methods import Method
from fedveil.methods.publishing import Validation

VALIDATORS = "validation-"  # begins the names of their ledgers


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Parameters):
    """Who validates and when, and when to stop.

    Parameters
    ----------
    clients : sequence of ClientData or of tuples
        Clients ``(x, y)`` that never train and share no record with those that do.
    patience : int
        Validations in a row without a better loss, after which the run ends.
    every : int
        v: the models of each v-th round are validated.
    sample : int, optional
        Validation clients asked each time, drawn anew. Default: all.
    min_delta : float
        By how much a loss must fall to count as better; of the size of the noise in it, or chance decides.
    validation : Validation
        How the losses leave.
    twins : bool
        Whether rows that a training and a validation client have alike are different records, as in data of few
        distinct rows. By default they are refused.

    Examples
    --------
    >>> held = [(x[:40] + 1, y[:40])]  # of a fourth hospital, which never trains
    >>> rule = fv.EarlyStopping(clients=held, patience=2, validation=fv.Validation(losses="public"))
    >>> run = fv.Federation(model=model, clients=clients, evaluation=fv.Evaluation(stopping=rule)).run(2)
    >>> run.best.round in (1, 2)
    True
    """

    clients: Sequence[ClientData | Sequence[Any]] = field(default=(), repr=False, compare=False)
    patience: Count = 5
    every: Count = 1
    sample: Count | None = None
    min_delta: NonNegative = 0.0
    validation: Validation = field(default_factory=Validation)
    twins: bool = False

    def following(self, best: Best, loss: float, round_: int, models: Tensor) -> Best:
        """The best models after those of a round [k, d] had this loss."""
        if loss < best.loss - (self.min_delta if isfinite(best.loss) else 0.0):
            return Best(loss, round_, 0, models.clone())
        return replace(best, waited=best.waited + 1)

    def ends(self, best: Best) -> str:
        """Why the run is over, or ""."""
        if best.waited < self.patience:
            return ""
        waited = f"no better validation loss in {best.waited} validations"
        return f"stopped early: {waited}; the best one is that of round {best.round}"


class Validator(Party):
    """One validation client: its ledger is charged for every loss that leaves, as far as policy and budget allow.

    Parameters
    ----------
    method : Method
        Of the run: a policy allows it or not.
    policy : Policy, optional
        What the client's owner allows.
    validation : Validation
        How losses leave.
    ledger, source, budget, store
        See `Party`.

    Attributes
    ----------
    cap : int, optional
        Releases of one run, at most, where the client pays for them.
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
        """Why the client sends no loss in this round, before its data are touched; "" if it does.

        Under central trust, where the server pays for the noise, a policy and a budget count participations.
        """
        spend, public = self._validation.quote(self._trust), self._validation.losses == "public"
        if self.ledger.find((round_, VALIDATE)) is not None:
            return ""
        if self.policy is not None and public:
            return 'a policy allows no loss in the clear: set losses to "noised"'
        if self._trust != "central" or public:
            return self._forbidden(self._method, spend)  # what leaves is charged when it does
        if self.policy is None and self.budget is None:
            return ""
        if not self._charge(spend):
            return self._forbidden(self._method, spend) or "its budget is used up"
        self._commit(accounting.Entry((round_, VALIDATE), 0, accounting.digest(()), spend, "none"))
        return ""

    def send(self, loss: float, round_: int) -> float:
        """Release a loss after a round: the same number again if that round was validated before, or it costs again.

        Raises
        ------
        BudgetError
            If policy or budget do not hold another release.
        """
        drawn = self._draw(round_, VALIDATE, lambda source: self._validation.release(loss, self._trust, source))
        return float(drawn[0].value)

    def spent(self, before: int) -> int:
        """Releases made before a round."""
        return sum(e.key[1] == VALIDATE and e.key[0] < before for e in self.ledger.entries)

    def _charge(self, spend: accounting.Spend) -> bool:
        used_up = self.cap is not None and len(self.ledger.entries) >= self.cap
        return not used_up and not self._forbidden(self._method, spend) and super()._charge(spend)


def cap_of(validation: Validation, trust: accounting.Trust) -> int | None:
    """Releases that one validation client makes in a run at most, where it pays for them."""
    return validation.releases if validation.losses == "noised" and trust != "central" else None


def drawn(rule: EarlyStopping, seed: int, round_: int, everybody: Sequence[int]) -> list[int]:
    """Validation clients that are asked after a round, of so many; nobody where it is not validated."""
    if round_ % rule.every or not everybody:
        return []
    return draw_cohort(seed, -round_, everybody, min(rule.sample or len(everybody), len(everybody)))


def worst_of(guarantees: Iterable[accounting.Guarantee]) -> accounting.Guarantee | None:
    """What holds for all of them: the one that promises least, with the largest distance between hypotheses of any.

    Least is nothing proven, else the largest parameter. None of none.
    """
    every = list(guarantees)
    worst = max(every, key=lambda g: (not g.proven, g.cost), default=None)
    apart = max((g.hypotheses_apart for g in every if g.hypotheses_apart is not None), default=None)
    return worst if worst is None or apart is None else replace(worst, hypotheses_apart=apart)


class Validators:
    """The validation clients of a run, and what follows from their losses.

    Parameters
    ----------
    rule : EarlyStopping
        When to validate and to stop.
    clients : sequence of ClientData
        Those of the rule; they hold examples x, y.
    learner : Learner
        The model and the loss.
    server : ServerParty
        Charged under central trust.
    source, ledgers, seed, policy
        See `Federation`.
    budgets : callable
        Index of a validation client -> its filter, a fresh one.
    say : callable
        Takes why a validation client declines.

    Attributes
    ----------
    best : Best
        What a checkpoint has to keep.
    """

    def __init__(
        self,
        rule: EarlyStopping,
        clients: Sequence[ClientData],
        learner: Learner,
        server: ServerParty,
        source: Source,
        ledgers: Callable[[str], tuple[accounting.Ledger, LineStore]],
        seed: int,
        *,
        policy: accounting.Policy | None = None,
        budgets: Callable[[int], accounting.SpendFilter | None] = lambda partition: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        empty = [i for i, c in enumerate(clients) if not c.examples]
        if empty or not clients:
            raise FieldError("stopping.clients", empty, "must be clients with examples, at least one")
        if rule.sample is not None and rule.sample > len(clients):
            raise FieldError("sample", rule.sample, f"there are only {len(clients)} validation clients")
        self.rule, self.clients, self.best = rule, clients, Best()
        self._learner, self._server, self._seed, self._say = learner, server, seed, say
        self._trust: accounting.Trust = server.method.client.trust
        quoted = rule.validation.quote(self._trust)
        for tried in map(budgets, range(len(clients))):
            if tried is not None:  # one that cannot hold such a release says so before anything is trained
                deepcopy(tried).admit_spend(quoted)

        def make(partition: int) -> Validator:
            ledger, store = ledgers(f"{VALIDATORS}{partition}")
            return Validator(server.method, policy, rule.validation, ledger, source, budgets(partition), store)

        self._party = cache(make)

    @property
    def stopped(self) -> str:
        """Why the run is over, or ""."""
        return self.rule.ends(self.best)

    def validate(self, models: Tensor, round_: int) -> float | None:
        """The validation loss of the models [k, d] of a round, as released; None where none is due, or none is left."""
        asked = self._asked(round_)
        value = self._released(asked, self._losses([self.clients[p] for p in asked], models), round_) if asked else None
        if value is not None:
            self.best = self.rule.following(self.best, value, round_, models)
        return value

    def foresee(self, round_: int) -> None:
        """Release losses of zero where some are due: for a forecast of their cost, which no loss changes."""
        asked = self._asked(round_)
        if asked:
            self._released(asked, torch.zeros(len(asked), dtype=torch.float64), round_)

    def guarantees(self) -> Mapping[str, accounting.Guarantee]:
        """Total of every validation client that released something, by the name of its ledger."""
        if self._trust == "central" and self.rule.validation.losses == "noised":  # the server's, in its own ledger
            return {}
        books = [self._party(partition).ledger for partition in range(len(self.clients))]
        return {b.party: accounting.total(e.spend.guarantee for e in b.entries) for b in books if b.entries}

    def _asked(self, round_: int) -> list[int]:
        """Sample of a round, of those whose number of releases is not used up, without those who decline.

        Public facts alone decide. Nobody in a round that is not validated.
        """
        left, cap = list(range(len(self.clients))), cap_of(self.rule.validation, self._trust)
        if cap is not None:
            left = [p for p in left if self._party(p).spent(round_) < cap]
        asked = drawn(self.rule, self._seed, round_, left)
        reasons = {p: self._party(p).declines(round_) for p in asked}
        for p, reason in reasons.items():
            if reason:
                self._say(f"validation client {p} sends no loss: {reason}")
        return [p for p in asked if not reasons[p]]

    def _released(self, asked: Sequence[int], losses: Tensor, round_: int) -> float | None:
        public = self.rule.validation.losses == "public"
        if self._trust == "central" and not public:
            return self._server.validate(round_, losses, self.rule.validation)
        sent = []
        for p, loss in zip(asked, losses.tolist(), strict=True):
            with suppress(BudgetError):  # public costs alone decide, so that silence tells nothing
                sent.append(self._party(p).send(loss, round_))
        return sum(sent) / len(sent) if sent else None

    def _losses(self, clients: Sequence[ClientData], models: Tensor) -> Tensor:
        """Loss of each client's best hypothesis [m]; infinite where there is none."""
        learner = self._learner
        losses = []
        try:
            losses = [client_losses(learner.model, learner.layout, models, clients, learner.local.loss)]
        except Exception:  # someone's data: then one by one, so that only that client's loss is infinite
            for client in clients:
                try:
                    losses.append(client_losses(learner.model, learner.layout, models, [client], learner.local.loss))
                except Exception:
                    losses.append(torch.full((1, len(models)), inf, dtype=torch.float64))
        return torch.nan_to_num(torch.cat(losses), nan=inf).min(dim=1).values
