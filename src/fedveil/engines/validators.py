"""The validation clients of a run in one process. They share no record, and no person, with clients that train."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from hashlib import blake2b
from math import inf

import torch
from torch import Tensor

from fedveil import accounting
from fedveil.engines.history import Best
from fedveil.engines.parties import Parties
from fedveil.engines.party import VALIDATORS
from fedveil.engines.server import ServerParty
from fedveil.engines.stopping import EarlyStopping, Validator, cap_of, drawn
from fedveil.errors import BudgetError, FieldError
from fedveil.learning import ClientData, client_losses
from fedveil.learning.clients import as_client

Clients = Sequence[ClientData]
BLOCK = 4096  # rows that are looked at together


class Validators:
    """The validation clients of a run, and what follows from their losses.

    Parameters
    ----------
    rule : EarlyStopping
        Who validates, when, and when to stop.
    parties : Parties
        The clients that train, with whom validation clients share no record and no person.
    server : ServerParty
        Charged under central trust.
    say : callable
        Takes why a validation client declines.

    Attributes
    ----------
    best : Best
        What a checkpoint has to keep.
    """

    def __init__(self, rule: EarlyStopping, parties: Parties, server: ServerParty, say: Callable[[str], None]) -> None:
        clients = [as_client(c, f"stopping.clients[{i}]") for i, c in enumerate(rule.clients)]
        empty = [i for i, c in enumerate(clients) if not c.examples]
        if empty or not clients:
            raise FieldError("stopping.clients", empty, "must be clients with examples, at least one")
        if rule.sample is not None and rule.sample > len(clients):
            raise FieldError("sample", rule.sample, f"there are only {len(clients)} validation clients")
        noisy, first = parties.method.noisy, len(parties.data)
        require_disjoint(
            parties.data, clients, rule.allow_equal_rows, people=noisy is not None and noisy.noisy_steps.images > 0
        )
        self.rule, self.clients, self.best = rule, clients, Best()
        self._learner, self._server, self._seed, self._say = parties.learner, server, parties.seed, say
        self._trust: accounting.Trust = server.method.client.trust
        quoted = rule.validation.quote(self._trust)
        for tried in (parties.budget(first + p) for p in range(len(clients))):
            if tried is not None:  # one that cannot hold such a release says so before anything is trained
                deepcopy(tried).admit_spend(quoted)

        def make(p: int) -> Validator:
            ledger, store = parties.ledger(f"{VALIDATORS}{p}")
            method, policy, budget = server.method, parties.policy, parties.budget(first + p)
            return Validator(method, policy, rule.validation, ledger, parties.source, budget, store)

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

    def forecast(self, round_: int) -> None:
        """Release losses of zero where some are due: for a forecast of their cost, which no loss changes."""
        asked = self._asked(round_)
        if asked:
            self._released(asked, torch.zeros(len(asked), dtype=torch.float64), round_)

    def books(self) -> dict[str, accounting.Ledger]:
        """The ledger of every validation client, by name."""
        return {book.party: book for book in (self._party(p).ledger for p in range(len(self.clients)))}

    def _asked(self, round_: int) -> list[int]:
        """Sample of a round, of those whose number of releases is not used up, without those who decline.

        Public facts alone decide. Nobody in a round that is not validated.
        """
        allowed, cap = list(range(len(self.clients))), cap_of(self.rule.validation, self._trust)
        if cap is not None:
            allowed = [p for p in allowed if self._party(p).spent(round_) < cap]
        asked = drawn(self.rule, self._seed, round_, allowed)
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


def require_disjoint(training: Clients, validating: Clients, allow_equal_rows: bool, people: bool = False) -> None:
    """Refuse a validation client that holds a row, or a person, of a training client; held-out rows are included.

    Parameters
    ----------
    training, validating : sequence of ClientData
        Both sides.
    allow_equal_rows : bool
        Whether equal rows are different records: then rows are compared by where they lie in memory alone.
    people : bool
        Whether persons are protected: then the numbers that clients give for theirs are compared, too.

    Raises
    ------
    FieldError
        Naming the first validation client that shares one.
    """
    looks = (_places,) if allow_equal_rows else (_places, _contents)
    for look in (*looks, _people) if people else looks:
        held = {mark: i for i, client in enumerate(training) for mark in look(client)}
        for i, client in enumerate(validating):
            shared = next((mark for mark in look(client) if mark in held), None)
            if shared is not None:
                what = "persons" if look is _people else "rows"
                accepted = f"shares {what} with clients[{held[shared]}], whose promise covers no validation loss: "
                accepted += "give each to one of them"
                if look is _contents:
                    accepted += "; where equal rows are different records, say so: EarlyStopping(allow_equal_rows=True)"
                raise FieldError(f"stopping.clients[{i}]", client.name or "data", accepted)


def _tables(client: ClientData) -> Iterator[Tensor]:
    yield from (x for x in (client.x, client.test_x) if x is not None and x.numel())


def _places(client: ClientData) -> Iterator[int | bytes]:
    for rows in _tables(client):
        step = rows.stride(0) * rows.element_size()
        yield from (rows.data_ptr() + i * step for i in range(len(rows)))


def _people(client: ClientData) -> Iterator[int | bytes]:
    yield from [] if client.person is None else set(client.person.tolist())


def _contents(client: ClientData) -> Iterator[int | bytes]:
    for rows in _tables(client):
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK].detach().cpu().reshape(-1, rows[0].numel()).to(torch.float64)
            for row in (block + 0.0).numpy():  # of two zeros one
                yield blake2b(row.tobytes(), digest_size=16).digest()
