"""Who is connected: partitions and the nodes that speak for them."""

import time
from collections.abc import Iterable
from logging import getLogger

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedveil.engines.flower.records import HELLO, read_mark, values_in
from fedveil.engines.messages import REPLY, UnprotectedError
from fedveil.errors import FedVeilError, cleaned, require_count, require_positive
from fedveil.methods import ClientSide
from fedveil.secure import PublicKey, public_key

_LOG = getLogger("flwr")
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
        deadline, said = time.monotonic() + self._patience, -1
        while True:
            connected = set(grid.get_node_ids())
            if len(connected) >= awaited:
                return connected
            left = deadline - time.monotonic()
            if left <= 0 and self.partitions:
                return connected
            if left <= 0:
                raise FedVeilError(f"{len(connected)} of {awaited} clients connected within {self._patience:g} s")
            if len(connected) != said:
                said = len(connected)
                _LOG.info("%d of %d clients are connected; waiting up to %.0f s", said, awaited, left)
            time.sleep(min(PAUSE, left))

    def _greet(self, grid: Grid, nodes: Iterable[int], timeout: float) -> list[str]:
        messages = [Message(RecordDict({HELLO: ConfigRecord()}), node, MessageType.TRAIN) for node in nodes]
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
        partition, node = read_mark(reply.content, self._client)[0], reply.metadata.src_node_id
        mark = values_in(reply.content, REPLY)
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
