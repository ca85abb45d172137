"""Nodes of a Flower run: which are connected, their partitions, and the exchange of requests and answers."""

import time
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedveil.engines.answers import Collected
from fedveil.engines.flower import records
from fedveil.engines.memory import require_room
from fedveil.engines.messages import REPLY, UnprotectedError, seals_of
from fedveil.engines.server import ServerParty
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
from fedveil.methods import Broadcast, ClientSide, PublicFacts, Releases, SecureSum
from fedveil.secure import PublicKey, public_key

_LOG = logger("flwr")
NODE_UNAVAILABLE = 5  # Flower's code for an unavailable node
LOST = (
    3,
    4,
    NODE_UNAVAILABLE,
    8,
)  # Flower's codes for a lost message, reply, node or process
PAUSE = 1.0  # seconds between two looks at connected nodes


class Roster:
    """Partition of each connected node, learned by one greeting for each new node.

    The greeting is a train message without arrays; the privacy mod answers it before any training code runs. Node ids
    are random and change with a restart, so cohorts, noise and ledgers use the partition.

    Parameters
    ----------
    client : ClientSide
        Client side of the method; a node with another one is refused.
    planned : int, optional
        Number of clients; partitions are then 0, 1, ... Default: all nodes that are connected in the first round.
    patience : float
        Seconds to wait for all of them in the first round, and later for as many as a round needs.
    validators : int
        Number of validating nodes, for which the first round also waits.
    before : sequence of int
        Partitions of an earlier server of the run; the first round waits for them.
    least : int
        Number of clients for which the first round waits if `planned` and `before` are not given.

    Attributes
    ----------
    nodes : dict of int to int
        Node of each connected partition.
    sites : dict of int to bytes
        Public key that each partition's site sent, for secure sums.
    validating : dict of int to int
        Node of each partition that only validates; these are numbered separately.
    partitions : list of int
        Partitions of the federation, connected or not.
    """

    def __init__(
        self,
        client: ClientSide,
        planned: int | None,
        patience: float,
        validators: int = 0,
        before: Sequence[int] = (),
        least: int = 1,
    ) -> None:
        self._client = client
        self._planned = None if planned is None else require_count("clients", planned)
        self._patience = require_positive("patience", patience)
        self._awaited, self._met = (self._planned or len(before) or least) + validators, False
        self.nodes: dict[int, int] = {}
        self.sites: dict[int, PublicKey] = {}
        self.validating: dict[int, int] = {}
        self.partitions = list(before)

    def meet(self, grid: Grid, timeout: float, least: int = 0) -> None:
        """Greet new nodes, forget absent ones, and wait until at least `least` nodes are connected.

        Raises
        ------
        UnprotectedError
            If no node's answer shows that it runs the mod with this method.
        FedVeilError
            If too few nodes connect in the first round.
        """
        connected = self._connected(grid, least)
        self.nodes = {p: node for p, node in self.nodes.items() if node in connected}
        self.validating = {p: node for p, node in self.validating.items() if node in connected}
        new = sorted(connected - {*self.nodes.values(), *self.validating.values()})
        reasons = self._greet(grid, new, timeout) if new else []
        first, self._met = not self._met, True
        for reason in dict.fromkeys(reasons):
            _LOG.warning(
                "a node did not answer the greeting and takes no part in this round: %s", reason
            )
        if not self.nodes and first:
            said = "; ".join(dict.fromkeys(reasons[:10]))
            needs = "fedveil.flower.privacy_mod(layout, method) first in its mods, with the method of the strategy"
            raise UnprotectedError(
                f"no client answered the greeting ({said}). Every ClientApp needs {needs}"
            )
        if not self.partitions:
            self.partitions = (
                sorted(self.nodes) if self._planned is None else list(range(self._planned))
            )

    def _connected(self, grid: Grid, least: int) -> set[int]:
        awaited = least if self._met else max(self._awaited, least)
        deadline, shown = time.monotonic() + self._patience, -1
        while True:
            connected = set(grid.get_node_ids())
            if len(connected) >= awaited:
                return connected
            remaining = deadline - time.monotonic()
            if remaining <= 0 and self.partitions:
                return connected
            if remaining <= 0:
                raise FedVeilError(
                    f"{len(connected)} of {awaited} clients connected within {self._patience:g} s"
                )
            if len(connected) != shown:
                shown = len(connected)
                _LOG.info(
                    "%d of %d clients are connected; waiting up to %.0f s",
                    shown,
                    awaited,
                    remaining,
                )
            time.sleep(min(PAUSE, remaining))

    def _greet(self, grid: Grid, nodes: Iterable[int], timeout: float) -> list[str]:
        messages = [
            Message(RecordDict({records.HELLO: ConfigRecord()}), node, MessageType.TRAIN)
            for node in nodes
        ]
        reasons = []
        for reply in sorted(
            grid.send_and_receive(messages, timeout=timeout), key=lambda m: m.metadata.src_node_id
        ):
            try:
                self._admit(reply)
            except Exception as error:  # an invalid answer is that node's failure
                reasons.append(cleaned(error))
        return reasons

    def _admit(self, reply: Message) -> None:
        if reply.has_error():
            raise FedVeilError(str(reply.error.reason))
        partition, node = (
            records.read_mark(reply.content, self._client)[0],
            reply.metadata.src_node_id,
        )
        mark = records.values_in(reply.content, REPLY)
        validates = mark.get("validates") is True
        held = self.validating if validates else self.nodes
        if held.get(partition, node) != node:
            raise FedVeilError(
                f"two nodes speak for partition {partition}: give each its own partition-id"
            )
        planned = self.partitions if self._planned is None else range(self._planned)
        if (
            not validates
            and (self._planned is not None or self.partitions)
            and partition not in planned
        ):
            raise FedVeilError(
                f"a node speaks for partition {partition}, which is not planned: a planned number of clients needs "
                "partition-id = 0, 1, ... in the nodes' configuration; clients=None takes whoever is connected"
            )
        if self._client.trust == "secure sum" and not validates:
            key = public_key(str(mark.get("site")), "site")
            if any(key == other for p, other in self.sites.items() if p != partition):
                raise FedVeilError(
                    f"partition {partition} has the key of another site: give each a key of its own"
                )
            self.sites[partition] = key
        held[partition] = node


class Nodes:
    """Courier to the nodes of a Flower run: sends each round's messages and reads the replies.

    Parameters
    ----------
    server : ServerParty
        Server whose method the nodes run.
    roster : Roster
        Nodes that can be asked.
    attempts : int
        Most questions of one round of a secure sum; other rounds are asked once.

    Attributes
    ----------
    grid : Grid, optional
        Grid that carries the messages.
    timeout : float
        Seconds to wait for answers.
    config : ConfigRecord
        Further content of each request, such as the app's options.
    asked : dict of int to int
        Partition of each node of the last request.
    sent : list of Message
        Messages of the last request.
    beside : ArrayRecord, optional
        Unshared arrays that nodes need, such as frozen ones.
    """

    def __init__(self, server: ServerParty, roster: Roster, attempts: int) -> None:
        self._roster = roster
        self._method, self._layout = server.method, server.layout
        self._secure = self._method.client.trust == "secure sum"
        self._attempts = require_count("attempts", attempts)
        self.grid: Grid | None = None
        self.timeout, self.config = 3600.0, ConfigRecord()
        self.asked: dict[int, int] = {}
        self.sent: list[Message] = []  # Flower assigns their ids when it sends them
        self.beside: ArrayRecord | None = None
        self._answered: Iterable[Message] | None = None
        self._public: PublicFacts | None = None
        self._absent: dict[int, str] = {}
        # sites that are not asked again for secure sums, as each question costs the others
        self._declined: dict[int, str] = {}
        self._refusing: list[int] = []  # sites that declined in this round
        self._seals: dict[int, str] = {}  # seals of the replies that were read last

    def reach(self, number: int, cohort: Sequence[int]) -> dict[int, PublicKey | None]:
        """Return the connected members of a cohort, with their public keys; sites that declined a sum are left out."""
        least, connected = self._method.least_sites, self._roster.nodes
        reached = [p for p in cohort if p in connected and p not in self._declined]
        self._absent = {p: "is not connected" for p in cohort if p not in connected}
        if len(reached) < least:
            declined = [p for p in cohort if p in self._declined]
            raise self._few(number, f"{len(reached)} sites are connected", len(reached), declined)
        return {p: self._roster.sites[p] if self._secure else None for p in reached}

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Write a round's train messages. Flower sends them, or else `collect` does.

        Raises
        ------
        FieldError
            If the answers would not fit into memory. Each is held as a message and as a model.
        """
        require_room(len(partitions), broadcast.models, self._method.server, copies=2)
        self._public, self._answered = broadcast.public, None
        if broadcast.public.attempt == 0:
            self._refusing = []
        nodes = {p: self._roster.nodes[p] for p in partitions}
        self.address(broadcast, nodes, self.config, MessageType.TRAIN)

    def address(
        self, broadcast: Broadcast, nodes: Mapping[int, int], config: ConfigRecord, kind: str
    ) -> list[Message]:
        """Make a message with the broadcast for each partition's node."""
        self.asked = {node: partition for partition, node in nodes.items()}
        content = (
            records.write_broadcast(broadcast, self._layout, config, self.beside)
            if nodes
            else RecordDict()
        )
        self.sent = [Message(content, node, kind) for node in self.asked]
        return self.sent

    def take(self, replies: Iterable[Message]) -> None:
        """Receive the replies to the last messages, if Flower sent the messages."""
        self._answered = replies

    def collect(self) -> Collected:
        """Collect the answers of the nodes that were asked last, and sort them by their kind."""
        replies, self._answered = self._answered, None
        if replies is None:
            assert self.grid is not None  # the strategy has a grid before it asks
            replies = self.grid.send_and_receive(self.sent, timeout=self.timeout)
        released, failed, refused, lost = self.sorted(replies)
        if self._secure:
            self._declined |= refused
            self._refusing += refused
            refused = dict(self._declined)
        return Collected(
            released,
            {**self._absent, **failed},
            refused,
            lost=lost,
            trained=tuple(released),
            seals=self._seals,
            asked=len(self.asked),
        )

    def again(self, answers: Collected) -> list[int]:
        """Return the nodes to ask again for an incomplete sum: those that answered, with absent ones if these are too few."""
        public, least, replies = self._public, self._method.least_sites, answers.replies
        if not self._secure or len(replies) == len(self.asked):
            return []
        assert public is not None  # a round was asked
        assert self.grid is not None
        anew = sorted(replies) if len(replies) >= least else sorted({*replies, *answers.lost})
        if len(anew) >= least and public.attempt + 1 < self._attempts:
            _LOG.warning(
                "FedVeil: %d of %d sites answered; asking %s anew",
                len(replies),
                len(self.asked),
                anew,
            )
            self._roster.meet(self.grid, self.timeout, least)
            return anew
        few = self._few(
            public.round, f"{len(replies)} sites answered", len(replies), self._refusing
        )
        if len(replies) < least and isinstance(
            few, BudgetError
        ):  # otherwise the server reports who failed, and why
            raise few
        return []

    def _few(
        self, number: int, who: str, left: int, declined: Sequence[int]
    ) -> NoReplyError | BudgetError:
        """Return the error for too few sites; it is the end of the run if the declining sites would have sufficed."""
        least = self._method.least_sites
        why = f"round {number}: {who}, and a sum is of {least} at least"
        if not declined or left + len(declined) < least:
            return NoReplyError(why)
        first = min(declined)
        return BudgetError(
            f"client {first} declines ({self._declined[first]}); the last model stands ({why})"
        )

    def sorted(
        self, replies: Iterable[Message]
    ) -> tuple[dict[int, Releases], dict[int, str], dict[int, str], set[int]]:
        """Sort replies into releases, failures and refusals by partition; the last item is lost partitions that may return.

        A partition that answers twice, or with another partition's number, fails.
        """
        released: dict[int, Releases] = {}
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        self._seals = {}
        silent, lost = set(self.asked.values()), set[int]()
        partitions = {
            m.metadata.message_id: self.asked[m.metadata.dst_node_id]
            for m in self.sent
            if m.metadata.message_id
        }
        for reply in replies:
            own = self.asked.get(reply.metadata.src_node_id)
            # Flower's server answers for nodes that it lost
            partition = (
                partitions.get(reply.metadata.reply_to_message_id)
                if own is None and reply.has_error()
                else own
            )
            if partition is None:
                _LOG.warning(
                    "a reply of node %d, which was not asked, is ignored",
                    reply.metadata.src_node_id,
                )
                continue
            if partition not in silent:
                released.pop(partition, None)
                refused.pop(partition, None)
                failed[partition] = "sent two replies in one round"
            elif reply.has_error():
                code = reply.error.code
                target = refused if code == records.REFUSED and own is not None else failed
                gone = own is None and code == NODE_UNAVAILABLE
                target[partition] = (
                    "is gone: node unavailable" if gone else cleaned(reply.error.reason)
                )
                if own is None or code in LOST:
                    lost.add(partition)
            else:
                try:
                    claimed, counted = records.read_mark(reply.content, self._method.client)
                    if claimed != partition:
                        raise FieldError(
                            "partition-id",
                            claimed,
                            f"the node spoke for partition {partition} before",
                        )
                    released[partition] = self._released(reply, counted)
                    mark = records.values_in(reply.content, REPLY)
                    self._seals |= seals_of(mark, partition)
                except Exception as error:  # an invalid reply is that client's failure
                    failed[partition] = cleaned(f"{type(error).__name__}: {error}")
            silent.discard(partition)
        return (
            released,
            failed | dict.fromkeys(sorted(silent), "did not reply in time"),
            refused,
            lost | silent,
        )

    def _released(self, reply: Message, counted: bool) -> Releases:
        """Read the releases of a marked reply; for a secure sum the share alone."""
        server = self._method.server
        if not isinstance(server, SecureSum):
            return records.read_releases(reply.content, self._layout, counted)
        server.check_reply(share := records.read_share(reply.content), self._layout.size)
        return share
