"""Evaluation by nodes: choice of the nodes that measure new models, and use of their answers."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedveil.engines.flower.exchange import LOSS
from fedveil.engines.flower.roster import Roster
from fedveil.engines.history import Best
from fedveil.engines.server import ServerParty
from fedveil.engines.serving import mean_metrics
from fedveil.engines.stopping import EarlyStopping, drawn
from fedveil.errors import FieldError, ReplyError, cleaned
from fedveil.logs import logger
from fedveil.methods import Releases, check_figures
from fedveil.methods.publishing import Validation

_LOG = logger("flwr")


class Evaluating:
    """Evaluation of new models by nodes; it stores the models with the least validation loss.

    Parameters
    ----------
    server : ServerParty
        Server of the run.
    rule : EarlyStopping, optional
        With a rule, validating nodes are asked; otherwise all connected nodes, or none under local trust.
    seed : int
        Seed for the choice of validating nodes.
    wanted : bool
        Whether all nodes are asked in each round, until none answers.

    Attributes
    ----------
    best : Best
        Models with the least validation loss.
    """

    def __init__(
        self, server: ServerParty, rule: EarlyStopping | None, seed: int, wanted: bool
    ) -> None:
        if rule is not None and rule.clients:
            accepted = "names no clients under Flower: nodes validate, by privacy_mod(..., validation=Validation())"
            raise FieldError("stopping.clients", len(rule.clients), accepted)
        self._server, self._rule, self._seed, self.best = server, rule, seed, Best()
        self._central = server.method.client.trust == "central"
        self._wanted = wanted and self._central

    @property
    def stopped(self) -> str:
        """Reason why the run is over, or ""."""
        return "" if self._rule is None else self._rule.ends(self.best)

    def nodes(self, roster: Roster, round_: int) -> dict[int, int]:
        """Return the nodes that are asked after a round, by partition."""
        if self._rule is None:
            return dict(sorted(roster.nodes.items())) if self._wanted else {}
        held = roster.validating
        return {p: held[p] for p in drawn(self._rule, self._seed, round_, sorted(held))}

    def figures(
        self, released: dict[int, Releases], failed: dict[int, str], round_: int, models: Tensor
    ) -> dict[str, float]:
        """Return the clients' mean metrics, weighted by counts, or the released validation loss; empty without either."""
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

    def _loss(
        self, validation: Validation, released: Iterable[Releases], round_: int
    ) -> float | None:
        """Return the released loss: the mean of the nodes' releases, or the server's own release."""
        losses = [
            r.value.double()
            for replies in released
            for r in replies
            if r.kind == "metric" and r.name == LOSS
        ]
        if not losses:
            return None
        if not self._central or validation.losses == "public":
            return float(torch.stack(losses).mean())
        return self._server.validate(round_, torch.stack(losses), validation)
