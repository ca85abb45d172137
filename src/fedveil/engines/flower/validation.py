"""Evaluation. Of a node that only validates the loss of a broadcast model leaves as a release, or nothing does."""

from collections.abc import Callable, Iterable
from logging import getLogger
from math import inf, isfinite

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict
from torch import Tensor

from fedveil.accounting import Release
from fedveil.engines.flower import records
from fedveil.engines.flower.records import Memory
from fedveil.engines.flower.roster import Roster
from fedveil.engines.history import Best
from fedveil.engines.messages import REPLY
from fedveil.engines.node import Settings, disagreement, opened_ledger
from fedveil.engines.party import VALIDATE
from fedveil.engines.server import ServerParty
from fedveil.engines.serving import mean_metrics
from fedveil.engines.stopping import EarlyStopping, Validator, drawn
from fedveil.errors import BudgetError, FieldError, ReplyError, cleaned
from fedveil.layout import Layout
from fedveil.methods import Releases, check_figures
from fedveil.methods.publishing import Validation

_LOG = getLogger("flwr")
LOSS = "loss"  # of the app's evaluate function
Evaluate = Callable[[Message, Context], Message]


def validated(
    message: Message,
    context: Context,
    evaluate: Evaluate,
    settings: Settings,
    layout: Layout,
    validation: Validation,
    run: str,
) -> Message:
    """The answer of a validating node: its greeting, a loss that is in its ledger, or a refusal before data."""
    side, partition = settings.method.client, settings.partition
    mark = records.write_mark(partition, side, validates=True)
    if records.HELLO in message.content:
        return Message(RecordDict({REPLY: mark}), reply_to=message)
    if message.metadata.message_type.partition(".")[0] != MessageType.EVALUATE:
        return Message(Error(records.REFUSED, "this node validates and never trains"), reply_to=message)
    broadcast = records.read_broadcast(message.content, layout)
    number = broadcast.public.round
    with opened_ledger(Memory(context), settings, run) as (ledger, store):
        party = Validator(settings.method, settings.policy, validation, ledger, settings.source, settings.budget, store)
        reason = party.declines(number)
        if unlike := disagreement(broadcast.public, settings.rounds):
            reason = unlike.reason
        bounded = settings.policy is not None or settings.budget is not None
        made = ledger.entries if bounded else ledger.all_entries  # nothing else bounds runs together
        if party.cap is not None and sum(e.key[1] == VALIDATE for e in made) >= party.cap:
            reason = f"all {party.cap} losses were sent: only a policy with a total, or a budget, allows more runs"
        if reason:
            return Message(Error(records.REFUSED, reason), reply_to=message)
        try:
            by_name = {
                r.name: float(r.value) for r in records.read_releases(evaluate(message, context).content, layout)
            }
            loss = by_name[LOSS]
        except Exception as error:  # from here on it would tell something of the data
            _LOG.error("round %d: the loss is the largest that is declared", number, exc_info=error)
            loss = inf
        if side.trust == "central" and validation.losses == "noised":  # the server adds the noise, and pays for it
            sent = loss if isfinite(loss) else validation.loss_range
        else:
            try:
                sent = party.send(loss, number)
            except BudgetError as error:  # public costs alone decide
                return Message(Error(records.REFUSED, str(error)), reply_to=message)
    released = (Release("metric", torch.tensor(sent, dtype=torch.float64), LOSS),)
    content = records.write_reply(released, layout, partition, side)
    content[REPLY] = mark
    return Message(content, reply_to=message)


class Evaluating:
    """The server's half: whom it asks to evaluate the new models, and what follows from the answers.

    Parameters
    ----------
    server : ServerParty
        Of the run.
    rule : EarlyStopping, optional
        With one, nodes that only validate are asked; else everybody who is connected, nobody under local trust.
    seed : int
        Draws validating nodes.
    wanted : bool
        Whether everybody is asked, until nobody answers.

    Attributes
    ----------
    best : Best
        The models with the least validation loss.
    """

    def __init__(self, server: ServerParty, rule: EarlyStopping | None, seed: int, wanted: bool) -> None:
        if rule is not None and rule.clients:
            accepted = "names no clients under Flower: nodes validate, by privacy_mod(..., validation=Validation())"
            raise FieldError("stopping.clients", len(rule.clients), accepted)
        self._server, self._rule, self._seed, self.best = server, rule, seed, Best()
        self._central = server.method.client.trust == "central"
        self._wanted = wanted and self._central

    @property
    def stopped(self) -> str:
        """Why the run is over, or ""."""
        return "" if self._rule is None else self._rule.ends(self.best)

    def nodes(self, roster: Roster, round_: int) -> dict[int, int]:
        """Nodes that are asked after a round, by partition."""
        if self._rule is None:
            return dict(sorted(roster.nodes.items())) if self._wanted else {}
        held = roster.validating
        return {p: held[p] for p in drawn(self._rule, self._seed, round_, sorted(held))}

    def figures(
        self, released: dict[int, Releases], failed: dict[int, str], round_: int, models: Tensor
    ) -> dict[str, float]:
        """Mean of the clients' metrics, weighted by their counts, or the validation loss; empty where there is none."""
        for partition, replies in list(released.items()):
            try:
                check_figures(replies)
            except ReplyError as error:
                failed[partition] = cleaned(error)
                del released[partition]
        if not released and self._rule is None:
            few = cleaned("; ".join(dict.fromkeys(failed.values())))
            _LOG.warning("FedVeil: no client evaluates, and none is asked again (%s)", few)
            self._wanted = False
            return {}
        for partition, reason in failed.items():
            _LOG.info("client %s sends no figures: %s", partition, reason)
        if self._rule is None:
            return mean_metrics(released)
        value = self._loss(self._rule.validation, released.values(), round_)
        if value is None:
            return {}
        self.best = self._rule.following(self.best, value, round_, models)
        return {LOSS: value}

    def _loss(self, validation: Validation, released: Iterable[Releases], round_: int) -> float | None:
        """The loss as released: the mean of what left the nodes, or the server's own release."""
        losses = [r.value.double() for replies in released for r in replies if r.kind == "metric" and r.name == LOSS]
        if not losses:
            return None
        if not self._central or validation.losses == "public":
            return float(torch.stack(losses).mean())
        return self._server.validate(round_, torch.stack(losses), validation)
