"""Validation clients of a run in one process; they share no record and no person with clients that train."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
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
Marks = Callable[
    [ClientData], Iterator[int | bytes]
]  # keys by which a client's rows or persons are compared
BLOCK = 4096  # rows that are compared at once


class Validators:
    """Validation clients of a run in one process, and early stopping by their losses.

    Parameters
    ----------
    rule : EarlyStopping
        Rule of early stopping.
    parties : Parties
        Parties of the clients that train; validation clients share no record and no person with them.
    server : ServerParty
        Server; under central trust its ledger is charged for the noise.
    say : callable
        Called with the reason if a validation client declines.

    Attributes
    ----------
    best : Best
        Best models so far; checkpoints keep them.
    """

    def __init__(
        self, rule: EarlyStopping, parties: Parties, server: ServerParty, say: Callable[[str], None]
    ) -> None:
        self.rule, self.best, self.clients = rule, Best(), _read(rule)
        self._parties, self._server, self._say = parties, server, say
        self._learner, self._seed = parties.learner, parties.seed
        self._trust: accounting.Trust = server.method.client.trust
        noisy = parties.method.noisy
        persons = noisy is not None and noisy.noisy_steps.images > 0
        require_disjoint(parties.data, self.clients, rule.allow_equal_rows, persons)
        self._validators: dict[int, Validator] = {}
        quoted = rule.validation.quote(self._trust)
        for partition in range(len(self.clients)):
            tried = deepcopy(self._budget(partition))
            if (
                tried is not None
            ):  # a client that cannot make such a release refuses before training
                tried.admit_spend(quoted)

    def _budget(self, partition: int) -> accounting.SpendFilter | None:
        """Make a fresh filter for a validation client; its number follows those of the clients that train."""
        return self._parties.budget(len(self._parties.data) + partition)

    def validator(self, partition: int) -> Validator:
        """Return the party of a validation client, made when it is first needed."""
        if partition not in self._validators:
            ledger, store = self._parties.ledger(f"{VALIDATORS}{partition}")
            self._validators[partition] = Validator(
                self._server.method,
                self._parties.policy,
                self.rule.validation,
                ledger,
                self._parties.source,
                self._budget(partition),
                store,
            )
        return self._validators[partition]

    @property
    def stopped(self) -> str:
        """Reason why the run is over, or ""."""
        return self.rule.ends(self.best)

    def validate(self, models: Tensor, round_: int) -> float | None:
        """Measure and release the validation loss of a round's models [k, d]; None if none is due or allowed."""
        asked = self._asked(round_)
        if not asked:
            return None
        value = self._validated(asked, models, round_)
        if value is not None:
            self.best = self.rule.following(self.best, value, round_, models)
        return value

    def _validated(self, asked: Sequence[int], models: Tensor, round_: int) -> float | None:
        """Measure models [k, d] at the asked clients, and return the released loss."""
        losses = self._losses([self.clients[partition] for partition in asked], models)
        return self._released(asked, losses, round_)

    def forecast(self, round_: int) -> None:
        """Record the cost of a round's validation with losses of zero; the cost does not depend on the losses."""
        asked = self._asked(round_)
        if asked:
            self._released(asked, torch.zeros(len(asked), dtype=torch.float64), round_)

    def books(self) -> dict[str, accounting.Ledger]:
        """Return the ledger of every validation client, by name."""
        ledgers = [self.validator(partition).ledger for partition in range(len(self.clients))]
        return {ledger.party: ledger for ledger in ledgers}

    def _asked(self, round_: int) -> list[int]:
        """Draw the clients that validate a round, without those that decline or have no release left.

        Only public facts decide. The list is empty in a round that is not validated.
        """
        allowed = list(range(len(self.clients)))
        cap = cap_of(self.rule.validation, self._trust)
        if cap is not None:
            allowed = [
                partition for partition in allowed if self.validator(partition).spent(round_) < cap
            ]
        asked = []
        for partition in drawn(self.rule, self._seed, round_, allowed):
            reason = self.validator(partition).declines(round_)
            if reason:
                self._say(f"validation client {partition} sends no loss: {reason}")
            else:
                asked.append(partition)
        return asked

    def _released(self, asked: Sequence[int], losses: Tensor, round_: int) -> float | None:
        public = self.rule.validation.losses == "public"
        if self._trust == "central" and not public:
            return self._server.validate(round_, losses, self.rule.validation)
        sent = []
        for partition, loss in zip(asked, losses.tolist(), strict=True):
            with suppress(BudgetError):  # only public costs decide, so silence reveals nothing
                sent.append(self.validator(partition).send(loss, round_))
        return sum(sent) / len(sent) if sent else None

    def _losses(self, clients: Sequence[ClientData], models: Tensor) -> Tensor:
        """Compute the loss of each client's best hypothesis, [m]; infinity if no hypothesis has a finite loss."""
        learner = self._learner
        losses = []
        try:
            losses = [
                client_losses(learner.model, learner.layout, models, clients, learner.local.loss)
            ]
        except (
            Exception
        ):  # a client's data failed; measured one by one, only that client's loss is infinite
            for client in clients:
                try:
                    losses.append(
                        client_losses(
                            learner.model, learner.layout, models, [client], learner.local.loss
                        )
                    )
                except Exception:
                    losses.append(torch.full((1, len(models)), inf, dtype=torch.float64))
        return torch.nan_to_num(torch.cat(losses), nan=inf).min(dim=1).values


def _read(rule: EarlyStopping) -> list[ClientData]:
    """Convert the data of validation clients to `ClientData`.

    Raises
    ------
    FieldError
        If there is no client, a client is empty, or the sample is larger than their number.
    """
    clients = [as_client(given, f"stopping.clients[{i}]") for i, given in enumerate(rule.clients)]
    empty = [i for i, client in enumerate(clients) if not client.examples]
    if empty or not clients:
        raise FieldError("stopping.clients", empty, "must be clients with examples, at least one")
    if rule.sample is not None and rule.sample > len(clients):
        raise FieldError("sample", rule.sample, f"there are only {len(clients)} validation clients")
    return clients


def require_disjoint(
    training: Clients, validating: Clients, allow_equal_rows: bool, people: bool = False
) -> None:
    """Refuse a validation client with a row or a person of a training client; held-out rows count, too.

    Parameters
    ----------
    training, validating : sequence of ClientData
        Clients of both sides.
    allow_equal_rows : bool
        Whether equal rows are different records. If so, rows are compared only by their place in memory.
    people : bool
        Whether persons are protected. If so, the clients' numbers of persons are also compared.

    Raises
    ------
    FieldError
        For the first such client; the text names it.
    """
    marks: list[Marks] = [_places]
    if not allow_equal_rows:
        marks.append(_contents)
    if people:
        marks.append(_people)
    for marks_of in marks:
        held: dict[int | bytes, int] = {}
        for i, client in enumerate(training):
            held |= dict.fromkeys(marks_of(client), i)
        for i, client in enumerate(validating):
            _require_unheld(client, f"stopping.clients[{i}]", marks_of, held)


def _require_unheld(
    client: ClientData, field: str, marks_of: Marks, held: Mapping[int | bytes, int]
) -> None:
    """Refuse a client if one of its marks (a row's place or digest, or a person) belongs to a training client."""
    for mark in marks_of(client):
        if mark in held:
            what = "persons" if marks_of is _people else "rows"
            accepted = f"shares {what} with clients[{held[mark]}], whose promise covers no validation loss: "
            accepted += "give each to one of them"
            if marks_of is _contents:
                accepted += "; where equal rows are different records, say so: EarlyStopping(allow_equal_rows=True)"
            raise FieldError(field, client.name or "data", accepted)


def _tables(client: ClientData) -> list[Tensor]:
    """Return a client's training rows and held-out rows."""
    return [rows for rows in (client.x, client.test_x) if rows is not None and rows.numel()]


def _places(client: ClientData) -> Iterator[int | bytes]:
    """Yield the memory address of each row."""
    for rows in _tables(client):
        step = rows.stride(0) * rows.element_size()
        for i in range(len(rows)):
            yield rows.data_ptr() + i * step


def _people(client: ClientData) -> Iterator[int | bytes]:
    """Yield the numbers of a client's persons."""
    if client.person is not None:
        yield from set(client.person.tolist())


def _contents(client: ClientData) -> Iterator[int | bytes]:
    """Yield a digest of each row's values."""
    for rows in _tables(client):
        for start in range(0, len(rows), BLOCK):
            block = (
                rows[start : start + BLOCK]
                .detach()
                .cpu()
                .reshape(-1, rows[0].numel())
                .to(torch.float64)
            )
            for row in (block + 0.0).numpy():  # zero and minus zero count as equal
                yield blake2b(row.tobytes(), digest_size=16).digest()
