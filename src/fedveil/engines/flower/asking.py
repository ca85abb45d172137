"""What the server asks of nodes, and what they answer, by partition."""

from collections.abc import Iterable, Mapping
from logging import getLogger

from flwr.app import ConfigRecord, Message

from fedveil.engines.flower import records
from fedveil.errors import FieldError, cleaned
from fedveil.layout import Layout
from fedveil.methods import Broadcast, Method, Releases, SecureSum

_LOG = getLogger("flwr")
NODE_UNAVAILABLE = 5  # Flower's code
LOST = (3, 4, NODE_UNAVAILABLE, 8)  # Flower's codes of a message, a reply, a node or a process that is gone


class Asking:
    """The last question to the nodes.

    Parameters
    ----------
    method : Method
        Whose client side answers.
    layout : Layout
        Of the model's vector.

    Attributes
    ----------
    asked : dict of int to int
        Partition of each node that was asked.
    lost : set of int
        Partitions without a reply of their own, which may be back.
    """

    def __init__(self, method: Method, layout: Layout) -> None:
        self._method, self._layout = method, layout
        self.asked: dict[int, int] = {}
        self.lost: set[int] = set()
        self._sent: list[Message] = []  # Flower gives them their ids when it sends them

    def messages(
        self, broadcast: Broadcast, nodes: Mapping[int, int], config: ConfigRecord, kind: str
    ) -> list[Message]:
        """A broadcast to the node of each partition."""
        self.asked = {node: partition for partition, node in nodes.items()}
        content = records.write_broadcast(broadcast, self._layout, config)
        self._sent = [Message(content, node, kind) for node in self.asked]
        return self._sent

    def sorted(self, replies: Iterable[Message]) -> tuple[dict[int, Releases], dict[int, str], dict[int, str]]:
        """Releases, failures and refusals by partition; a partition that answers twice, or as another one, fails."""
        released: dict[int, Releases] = {}
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        silent, self.lost = set(self.asked.values()), set()
        told = {m.metadata.message_id: self.asked[m.metadata.dst_node_id] for m in self._sent if m.metadata.message_id}
        for reply in replies:
            own = self.asked.get(reply.metadata.src_node_id)
            # Flower's server answers for nodes that it lost
            partition = told.get(reply.metadata.reply_to_message_id) if own is None and reply.has_error() else own
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
