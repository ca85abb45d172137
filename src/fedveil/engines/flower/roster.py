"""Who is connected, what the server asks of them, and what they answer: nodes, and the partitions they speak for."""

import time
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedveil.engines.flower import records
from fedveil.engines.messages import REPLY, UnprotectedError
from fedveil.engines.serving import Serving
from fedveil.errors import (
    BudgetError,
    FedVeilError,
    FieldError,
    NoReplyError,
    cleaned,
    require_count,
    require_positive,
)
from fedveil.logs import logger
from fedveil.methods import Broadcast, ClientSide, Releases, SecureSum
from fedveil.secure import PublicKey, public_key

_LOG = logger("flwr")
NODE_UNAVAILABLE = 5  # Flower's code
LOST = (3, 4, NODE_UNAVAILABLE, 8)  # Flower's codes of a message, a reply, a node or a process that is gone
PAUSE = 1.0  # seconds between two looks at who is connected


class Roster:
    """Learns which node speaks for which partition, by greeting every new node once.

    The greeting is a train message without arrays, which the mod answers before any training code runs. Node ids are
    random and change with a restart; cohorts, noise and ledgers go by partition.

    Parameters
    ----------
    client : ClientSide
        The method's client side, which every node must run.
    planned : int, optional
        Number of clients; partitions are then 0, 1, ... Default: whoever is connected in the first round.
    patience : float
        Seconds to wait for them in the first round, and later for as many as a round needs.
    validators : int
        Nodes that only validate, for which the first round waits as well.

    Attributes
    ----------
    nodes : dict of int to int
        Node of each partition that is connected.
    sites : dict of int to bytes
        Of secure sums: the public key that each partition's site named.
    validating : dict of int to int
        The same of those that only validate; their partitions are numbered apart.
    partitions : list of int
        Everybody who belongs to the federation, connected or not.
    """

    def __init__(self, client: ClientSide, planned: int | None, patience: float, validators: int = 0) -> None:
        self._client = client
        self._planned = None if planned is None else require_count("clients", planned)
        self._patience = require_positive("patience", patience)
        self._awaited = (self._planned or 1) + validators
        self.nodes: dict[int, int] = {}
        self.sites: dict[int, PublicKey] = {}
        self.validating: dict[int, int] = {}
        self.partitions: list[int] = []

    def meet(self, grid: Grid, timeout: float, least: int = 0) -> None:
        """Greet the nodes that are new, and forget those that left; wait for the `least` that a round needs.

        Raises
        ------
        UnprotectedError
            If no node answers the greeting as one that runs the mod with this method.
        FedVeilError
            If too few nodes connect in the first round.
        """
        connected = self._connected(grid, least)
        self.nodes = {p: node for p, node in self.nodes.items() if node in connected}
        self.validating = {p: node for p, node in self.validating.items() if node in connected}
        new = sorted(connected - {*self.nodes.values(), *self.validating.values()})
        reasons = self._greet(grid, new, timeout) if new else []
        for reason in dict.fromkeys(reasons):
            _LOG.warning("a node did not answer the greeting and takes no part in this round: %s", reason)
        if not self.nodes and not self.partitions:
            said = "; ".join(dict.fromkeys(reasons[:10]))
            needs = "fedveil.flower.privacy_mod(layout, method) first in its mods, with the method of the strategy"
            raise UnprotectedError(f"no client answered the greeting ({said}). Every ClientApp needs {needs}")
        if not self.partitions:
            self.partitions = sorted(self.nodes) if self._planned is None else list(range(self._planned))

    def _connected(self, grid: Grid, least: int) -> set[int]:
        awaited = least if self.partitions else max(self._awaited, least)
        deadline, shown = time.monotonic() + self._patience, -1
        while True:
            connected = set(grid.get_node_ids())
            if len(connected) >= awaited:
                return connected
            remaining = deadline - time.monotonic()
            if remaining <= 0 and self.partitions:
                return connected
            if remaining <= 0:
                raise FedVeilError(f"{len(connected)} of {awaited} clients connected within {self._patience:g} s")
            if len(connected) != shown:
                shown = len(connected)
                _LOG.info("%d of %d clients are connected; waiting up to %.0f s", shown, awaited, remaining)
            time.sleep(min(PAUSE, remaining))

    def _greet(self, grid: Grid, nodes: Iterable[int], timeout: float) -> list[str]:
        messages = [Message(RecordDict({records.HELLO: ConfigRecord()}), node, MessageType.TRAIN) for node in nodes]
        reasons = []
        for reply in sorted(grid.send_and_receive(messages, timeout=timeout), key=lambda m: m.metadata.src_node_id):
            try:
                self._admit(reply)
            except Exception as error:  # whatever a node sends is that node's failure
                reasons.append(cleaned(error))
        return reasons

    def _admit(self, reply: Message) -> None:
        if reply.has_error():
            raise FedVeilError(str(reply.error.reason))
        partition, node = records.read_mark(reply.content, self._client)[0], reply.metadata.src_node_id
        mark = records.values_in(reply.content, REPLY)
        validates = mark.get("validates") is True
        held = self.validating if validates else self.nodes
        if held.get(partition, node) != node:
            raise FedVeilError(f"two nodes speak for partition {partition}: give each its own partition-id")
        planned = self.partitions if self._planned is None else range(self._planned)
        if not validates and (self._planned is not None or self.partitions) and partition not in planned:
            raise FedVeilError(f"a node speaks for partition {partition}, which is not planned")
        if self._client.trust == "secure sum" and not validates:
            key = public_key(str(mark.get("site")), "site")
            if any(key == other for p, other in self.sites.items() if p != partition):
                raise FedVeilError(f"partition {partition} has the key of another site: give each a key of its own")
            self.sites[partition] = key
        held[partition] = node


class Asking:
    """The questions to the nodes, and what they answer.

    Parameters
    ----------
    serving : Serving
        Opens the rounds.
    roster : Roster
        Who can be asked.
    attempts : int
        Questions of one round at the most, of a secure sum; whatever else is asked once.

    Attributes
    ----------
    broadcast : Broadcast, optional
        What opened the last round.
    asked : dict of int to int
        Partition of each node that was asked last.
    lost : set of int
        Partitions without a reply of their own, which may be back.
    """

    def __init__(self, serving: Serving, roster: Roster, attempts: int) -> None:
        self._serving, self._roster = serving, roster
        self._method, self._layout = serving.server.method, serving.server.layout
        self._secure = self._method.client.trust == "secure sum"
        self._attempts = require_count("attempts", attempts)
        self.broadcast: Broadcast | None = None
        self.asked: dict[int, int] = {}
        self.lost: set[int] = set()
        self._sent: list[Message] = []  # Flower gives them their ids when it sends them
        self._config = ConfigRecord()
        # sites of secure sums that are asked no more: the others pay for each question
        self._declined: dict[int, str] = {}

    def to_train(
        self, models: Tensor, partitions: Iterable[int], number: int, size: int, config: ConfigRecord, attempt: int = 0
    ) -> list[Message]:
        """Open a round for those of the partitions that are connected, and declined no sum before.

        Raises
        ------
        NoReplyError
            If they are fewer than a sum needs.
        BudgetError
            If those of them who declined would have made them enough.
        """
        least, connected, wanted = self._method.least_sites, self._roster.nodes, [*partitions]
        nodes = {p: connected[p] for p in wanted if p in connected and p not in self._declined}
        if len(nodes) < least:
            raise self._few(number, f"{len(nodes)} sites are connected", len(nodes), [*self._declined.keys() & wanted])
        keys = [self._roster.sites[p] for p in nodes] if self._secure else ()
        self.broadcast, self._config = self._serving.open(models, number, size, keys, attempt), config
        return self.messages(self.broadcast, nodes, config, MessageType.TRAIN)

    def messages(
        self, broadcast: Broadcast, nodes: Mapping[int, int], config: ConfigRecord, kind: str
    ) -> list[Message]:
        """A broadcast to the node of each partition."""
        self.asked = {node: partition for partition, node in nodes.items()}
        content = records.write_broadcast(broadcast, self._layout, config) if nodes else RecordDict()
        self._sent = [Message(content, node, kind) for node in self.asked]
        return self._sent

    def trained(
        self, replies: Iterable[Message], grid: Grid, timeout: float
    ) -> tuple[Broadcast, dict[int, Releases], dict[int, str], dict[int, str]]:
        """What opened the round last; releases, failures and refusals by partition.

        A secure sum is of all who are asked: where one does not answer, those who did are asked anew, alone if they are
        enough.

        Raises
        ------
        BudgetError
            If sites declined in this round that would have made those who answered enough.
        """
        assert self.broadcast is not None  # a round was opened
        models, public, least = self.broadcast.models, self.broadcast.public, self._method.least_sites
        released, failed, refused = self.sorted(replies)
        self._serving.note(released, failed)
        for attempt in range(1, self._attempts if self._secure else 1):
            if len(released) == len(self.asked):
                break
            again = sorted(released) if len(released) >= least else sorted({*released, *self.lost})
            if len(again) < least:
                break
            _LOG.warning("FedVeil: %d of %d sites answered; asking %s anew", len(released), len(self.asked), again)
            self._roster.meet(grid, timeout, least)
            messages = self.to_train(models, again, public.round, public.cohort, self._config, attempt)
            released, more, none = self.sorted(grid.send_and_receive(messages, timeout=timeout))
            self._serving.note(released, more)
            failed = {p: why for p, why in {**failed, **more}.items() if p not in released}
            refused |= none
        if not self._secure:
            return self.broadcast, released, failed, refused
        self._declined |= refused
        if len(released) < least:
            few = self._few(public.round, f"{len(released)} sites answered", len(released), [*refused])
            if isinstance(few, BudgetError):  # else the server says who failed, and why
                raise few
        return self.broadcast, released, failed, self._declined

    def _few(self, number: int, who: str, left: int, declined: Sequence[int]) -> NoReplyError | BudgetError:
        """Why there is no sum: if those who declined would have made one, the run is over and not broken."""
        least = self._method.least_sites
        why = f"round {number}: {who}, and a sum is of {least} at least"
        if not declined or left + len(declined) < least:
            return NoReplyError(why)
        first = min(declined)
        return BudgetError(f"client {first} declines ({self._declined[first]}); the last model stands: {why}")

    def sorted(self, replies: Iterable[Message]) -> tuple[dict[int, Releases], dict[int, str], dict[int, str]]:
        """Releases, failures and refusals by partition; a partition that answers twice, or as another one, fails."""
        released: dict[int, Releases] = {}
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        silent, self.lost = set(self.asked.values()), set()
        partitions = {
            m.metadata.message_id: self.asked[m.metadata.dst_node_id] for m in self._sent if m.metadata.message_id
        }
        for reply in replies:
            own = self.asked.get(reply.metadata.src_node_id)
            # Flower's server answers for nodes that it lost
            partition = partitions.get(reply.metadata.reply_to_message_id) if own is None and reply.has_error() else own
            if partition is None:
                _LOG.warning("a reply of node %d, which was not asked, is ignored", reply.metadata.src_node_id)
                continue
            if partition not in silent:
                released.pop(partition, None)
                refused.pop(partition, None)
                failed[partition] = "sent two replies in one round"
            elif reply.has_error():
                code = reply.error.code
                target = refused if code == records.REFUSED and own is not None else failed
                gone = own is None and code == NODE_UNAVAILABLE
                target[partition] = "is gone: node unavailable" if gone else cleaned(reply.error.reason)
                if own is None or code in LOST:
                    self.lost.add(partition)
            else:
                try:
                    claimed, counted = records.read_mark(reply.content, self._method.client)
                    if claimed != partition:
                        raise FieldError("partition-id", claimed, f"the node spoke for partition {partition} before")
                    released[partition] = self._released(reply, counted)
                except Exception as error:  # whatever a client sends is that client's failure
                    failed[partition] = cleaned(f"{type(error).__name__}: {error}")
            silent.discard(partition)
        self.lost |= silent
        return released, failed | dict.fromkeys(sorted(silent), "did not reply in time"), refused

    def _released(self, reply: Message, counted: bool) -> Releases:
        """What a marked reply releases; of a secure sum the share and nothing else."""
        server = self._method.server
        if not isinstance(server, SecureSum):
            return records.read_releases(reply.content, self._layout, counted)
        server.check_reply(share := records.read_share(reply.content), self._layout.size)
        return share
