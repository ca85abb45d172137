"""Federation in one process whose clients are Flower nodes, reached only by messages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from logging import WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType, UserConfig
from flwr.clientapp import ClientApp
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.engines.answers import Collected
from fedveil.engines.federation import Federation
from fedveil.engines.flower import records
from fedveil.engines.flower.app import (
    learner_client_app,
    lying_mod,
    validator_client_app,
    with_buffers,
)
from fedveil.engines.flower.exchange import LOSS
from fedveil.engines.flower.grid import InProcessGrid, message_identity
from fedveil.engines.flower.roster import Nodes, Roster
from fedveil.engines.malicious import Collusion
from fedveil.engines.options import Execution
from fedveil.engines.party import VALIDATORS
from fedveil.engines.stopping import EarlyStopping
from fedveil.engines.validators import Validators
from fedveil.errors import FieldError
from fedveil.learning import Figures
from fedveil.logs import logger
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Releases
from fedveil.secure import PublicKey

_LOG = logger("flwr")
PATIENCE, ATTEMPTS = 600.0, 3  # seconds to wait for nodes, and questions of a secure sum
SHOWN = "published-"  # prefix of metrics' names in the config of the next round's messages


class FlowerFederation(Federation):
    """Federation in one process whose clients are Flower ClientApps, reached only by messages.

    It takes the arguments of `Federation` and returns the same `History`. On one machine, with the same seed, the
    models are equal to the bit. Published metrics come from the nodes' own measurements. The next round's messages hold
    them in their config, as ``published-loss`` and so on.

    Parameters
    ----------
    shuffle : int, optional
        Seed that shuffles the order of the clients' replies.
    execution : Execution, optional
        As for `Federation`; its courier is replaced by Flower's messages.
    **arguments
        As for `Federation`.
    """

    def __init__(
        self, *, shuffle: int | None = None, execution: Execution | None = None, **arguments: Any
    ) -> None:
        made = replace(
            execution or Execution(), courier=lambda federation: NodesInProcess(federation, shuffle)
        )
        super().__init__(execution=made, **arguments)

    def _validating(self, rule: EarlyStopping) -> Validators:
        say = partial(self.warnings.say, "validation")
        return NodeValidators(rule, self.parties, self.server, say)

    def _publish(self, single: Sequence[Figures]) -> dict[str, float]:
        nodes = self.courier
        if self.server.publishing.metrics == "off" or not isinstance(nodes, NodesInProcess):
            return {}
        shown = super()._publish(nodes.measured(self.models, single))
        nodes.config = ConfigRecord({f"{SHOWN}{name}": value for name, value in shown.items()})
        return shown


class NodeValidators(Validators):
    """Validation clients of a run as separate Flower nodes; their privacy mod protects the losses.

    Attributes
    ----------
    ask : callable
        Function ``(partitions, models) -> losses by partition``, set by the courier.
    """

    ask: Callable[[Sequence[int], Tensor], Mapping[int, float]]

    def _validated(self, asked: Sequence[int], models: Tensor, round_: int) -> float | None:
        sent = self.ask(asked, models)
        losses = [sent[partition] for partition in asked if partition in sent]
        if not losses:
            return None
        if self.rule.validation.losses == "public" or self._trust != "central":
            return sum(losses) / len(losses)
        numbers = torch.tensor(losses, dtype=torch.float64)
        return self._server.validate(round_, numbers, self.rule.validation)


class NodesInProcess(Nodes):
    """Courier to the nodes of a federation in one process; nodes keep their contexts between rounds.

    Parameters
    ----------
    federation : Federation
        Federation of the clients.
    shuffle : int, optional
        Seed that shuffles the order of the nodes' replies.

    Raises
    ------
    FieldError
        If a malicious client would bypass a secure sum.
    """

    def __init__(self, federation: Federation, shuffle: int | None = None) -> None:
        count, validating = len(federation.clients), federation.validators
        others = 0 if validating is None else len(validating.clients)
        self._greeted = Roster(federation.method.client, count, PATIENCE, others)
        super().__init__(federation.server, self._greeted, ATTEMPTS)
        self._federation, self._zeroed = federation, dict[int, str]()
        self._behaviours = federation.behaviours
        self._collusion = Collusion()
        self._last: Broadcast | None = None
        configs: list[UserConfig] = [
            {"partition-id": i, "num-partitions": count} for i in range(count + others)
        ]
        self.grid = self._nodes = _Overheard(self._apps(), configs, shuffle=shuffle)
        if isinstance(validating, NodeValidators):
            validating.ask = self.losses
        for partition, state in federation.client_states().items():
            records.Memory(self._nodes.contexts[partition]).save(state)

    def _apps(self) -> dict[int, ClientApp]:
        """Return the app of each node: honest clients, clients that bypass their method, and validating clients."""
        federation, count = self._federation, len(self._federation.clients)
        honest = self._app()
        apps = dict.fromkeys(range(count), honest)
        for partition in self._behaviours:
            if not self._records(partition):
                apps[partition] = self._liar()
        if federation.validators is not None:
            validator = self._validator(federation.validators)
            apps |= dict.fromkeys(
                range(count, count + len(federation.validators.clients)), validator
            )
        return apps

    def _app(self) -> ClientApp:
        federation, parties = self._federation, self._federation.parties
        return learner_client_app(
            federation.learner,
            federation.clients,
            parties.method_of if federation.client_sides else federation.method,
            seed=federation.seed,
            warnings=federation.warnings,
            behaviours=federation.behaviours,
            collusion=self._collusion,
            source=federation.source,
            policy=parties.policy,
            site=parties.site_keys.site,
            tell=lambda partition, _, error: self._zeroed.update(
                {partition: f"{type(error).__name__}: {error}"}
            ),
            budget=lambda partition: deepcopy(
                parties.budget(partition)
            ),  # the mod needs a fresh filter on each call
            ledgers=parties.ledger,
        )

    def _liar(self) -> ClientApp:
        federation = self._federation
        client = federation.method.client
        if client.trust == "secure sum":
            accepted = "is no attack on a secure sum: what is no masked share of a site is no reply"
            raise FieldError("behaviours.bypass", True, accepted)

        def lent(partition: int, number: int) -> Source:
            return federation.party(partition).training_source(number)

        return learner_client_app(
            federation.learner,
            federation.clients,
            federation.method,
            seed=federation.seed,
            behaviours=federation.behaviours,
            collusion=self._collusion,
            mod=lying_mod(federation.layout, client, lent),
        )

    def _validator(self, validators: Validators) -> ClientApp:
        federation, parties = self._federation, self._federation.parties
        first = len(federation.clients)
        return validator_client_app(
            federation.learner,
            validators.clients,
            first,
            federation.method,
            validation=validators.rule.validation,
            source=federation.source,
            policy=parties.policy,
            budget=lambda partition: deepcopy(parties.budget(partition)),
            ledgers=lambda party: parties.ledger(f"{VALIDATORS}{int(party) - first}"),
        )

    def _records(self, partition: int) -> bool:
        """Whether a client's ledger records its releases."""
        behaviour = self._behaviours.get(partition)
        return behaviour is None or not behaviour.bypass

    def reach(self, number: int, cohort: Sequence[int]) -> dict[int, PublicKey | None]:
        """Return the whole cohort, after each node was greeted."""
        with _quietly():
            self._greeted.meet(self._nodes, self.timeout)
        return super().reach(number, cohort)

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Write a round's train messages; malicious clients come last, so that they know the honest answers."""
        self._last = broadcast
        fellows = [partition for partition in partitions if partition in self._behaviours]
        self._collusion.begin(broadcast, fellows, self._sent)
        with _quietly():
            super().ask(broadcast, partitions)
        self.sent.sort(key=lambda message: self.asked[message.metadata.dst_node_id] in fellows)

    def _sent(self, partition: int) -> Tensor | None:
        """Return the model [d] in a node's answer of this round; None without an answer."""
        reply = self._nodes.heard.get(partition)
        if reply is None or reply.has_error():
            return None
        return model_of(records.read_releases(reply.content, self._layout))

    def collect(self) -> Collected:
        """Return the nodes' answers, with values that only an experimenter can see."""
        self._zeroed.clear()
        self._nodes.heard.clear()
        try:
            with _quietly():
                answers = super().collect()
        finally:
            self._take_over()
        parties = self._federation.parties
        noisy = answers.replies if self._federation.method.client.trust != "central" else ()
        scales = {
            p: parties.ledger(str(p))[0].entries[-1].spend.scale for p in noisy if self._records(p)
        }
        return replace(answers, scales=scales, zeroed=dict(sorted(self._zeroed.items())))

    def _take_over(self) -> None:
        """Copy states, buffers and ledgers from the nodes to this process."""
        federation = self._federation
        remembered = federation.client_states()
        for partition in range(len(federation.clients)):
            context = self._nodes.contexts[partition]
            federation.clients[partition] = with_buffers(federation.clients[partition], context)
            if federation.parties.ledger(str(partition))[0].entries:
                remembered[partition] = records.Memory(context).load(
                    federation.method.client.init()
                )
        federation.parties.resume(remembered)

    # ---- what nodes measure

    def losses(self, partitions: Sequence[int], models: Tensor) -> dict[int, float]:
        """Return the losses of models [k, d] released by validating nodes, by number of the validation client."""
        first = len(self._federation.clients)
        held = {p: self._greeted.validating[first + p] for p in partitions}
        found = {}
        for partition, releases in self._evaluated(held, models).items():
            for release in releases:
                if release.kind == "metric" and release.name == LOSS:
                    found[partition] = float(release.value)
        return found

    def measured(self, models: Tensor, single: Sequence[Figures]) -> list[Figures]:
        """Return each node's figures for models [k, d] on its held-out data; a node without an answer has those of `single`."""
        found = [Figures(figures) for figures in single]
        for partition, releases in self._evaluated(self._greeted.nodes, models).items():
            metrics = {r.name: float(r.value) for r in releases if r.kind == "metric"}
            found[partition] = Figures(found[partition] | metrics)
        return found

    def _evaluated(self, nodes: Mapping[int, int], models: Tensor) -> dict[int, Releases]:
        """Return the nodes' answers to an evaluate message, by partition."""
        assert self._last is not None  # a round was asked
        broadcast = Broadcast(models=models, public=self._last.public)
        with _quietly():
            self.address(broadcast, nodes, ConfigRecord(), MessageType.EVALUATE)
            replies = self._nodes.send_and_receive(self.sent)
        found = {}
        for reply in replies:
            if not reply.has_error():
                partition = self.asked[reply.metadata.src_node_id]
                found[partition] = records.read_releases(reply.content, self._layout)
        return found


class _Overheard(InProcessGrid):
    """Grid that stores the last answer of each node."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.heard: dict[int, Message] = {}

    def ask_node(self, message: Message) -> Message:
        reply = super().ask_node(message)
        self.heard[self._partitions[message.metadata.dst_node_id]] = reply
        return reply


@contextmanager
def _quietly() -> Iterator[None]:
    """Allow a server's messages in this context, and keep Flower's INFO lines about every round out of the log."""
    level = _LOG.level
    _LOG.setLevel(WARNING)
    try:
        with message_identity():
            yield
    finally:
        _LOG.setLevel(level)
