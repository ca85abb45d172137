"""Run of a ServerApp and ClientApps in one process, with Flower's messages but without its simulation engine and ports."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedveil.errors import FieldError, NoReplyError, require_count
from fedveil.learning.witness import witnessed
from fedveil.mechanisms import keyed_seed

RAISED = 2  # Flower's code for a ClientApp that raised
SERVER_NODE, RUN = 1, 1


class InProcessGrid(Grid):
    """Grid that hands each message to its node's ClientApp, one after another.

    Every node has its own persistent context. Requests and replies are copied, so that parties share no memory.

    Parameters
    ----------
    client_app : ClientApp or mapping of int to ClientApp
        One app for all nodes, or one for each partition.
    node_configs : sequence of dict
        Configuration of each node, its ``partition-id`` included.
    run_config : dict, optional
        Configuration of the run.
    shuffle : int, optional
        Seed that shuffles the order of replies; by default nodes answer in the order they were asked.

    Attributes
    ----------
    contexts : dict of int to Context
        Contexts of the nodes, by partition.
    """

    def __init__(
        self,
        client_app: ClientApp | Mapping[int, ClientApp],
        node_configs: Sequence[UserConfig],
        run_config: UserConfig | None = None,
        *,
        shuffle: int | None = None,
    ) -> None:
        self._app = client_app
        self._order = None if shuffle is None else random.Random(shuffle)
        self._partitions: dict[int, int] = {}  # partition of each node
        self.contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}
        self._pushed = 0
        self._failures: dict[
            int | None, list[Exception]
        ] = {}  # errors in the last answer, by partition
        for position, config in enumerate(node_configs):
            partition = int(config.get("partition-id", position))
            if partition in self.contexts:
                raise FieldError("partition-id", partition, "is given to two nodes")
            node = keyed_seed(
                "node", position
            )  # ids that reveal nothing about the partition, as in a deployment
            self._partitions[node] = partition
            self.contexts[partition] = Context(
                RUN, node, dict(config), RecordDict(), dict(run_config or {})
            )

    def set_run(self, run: Any) -> None:
        """Do nothing, as the grid has only one run."""

    @property
    def run(self) -> Any:
        """The grid's only run; only its id is known."""
        return SimpleNamespace(run_id=RUN)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._partitions)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids, asked = [], list(messages)
        for message in asked:
            self._pushed += 1
            ids.append(f"message-{self._pushed}")
            self._replies[ids[-1]] = self.ask_node(message)
        self._require_success(asked)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        replies = [self.ask_node(message) for message in asked]
        self._require_success(asked)
        if self._order is not None:
            self._order.shuffle(replies)
        return replies

    def _require_success(self, asked: Sequence[Message]) -> None:
        """Stop if every client failed. A real server could not see this; a simulation should say it."""
        partitions = [self._partitions.get(message.metadata.dst_node_id) for message in asked]
        failures = {p: self._failures.pop(p, []) for p in partitions}
        if failures and all(failures.values()):
            said = {p: f"{type(seen[0]).__name__}: {seen[0]}" for p, seen in failures.items()}
            raise NoReplyError(f"every client failed; {said}")

    def ask_node(self, message: Message) -> Message:
        partition = self._partitions[message.metadata.dst_node_id]
        app = self._app[partition] if isinstance(self._app, Mapping) else self._app
        request = Message(
            deepcopy(message.content),
            message.metadata.dst_node_id,
            message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        try:
            with witnessed() as seen:
                reply = app(request, self.contexts[partition])
            self._failures[partition] = seen
            return (
                reply if reply.has_error() else Message(deepcopy(reply.content), reply_to=request)
            )
        except Exception as error:  # as Flower's runtime does
            return Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=request)


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp | Mapping[int, ClientApp] | None = None,
    num_partitions: int | None = None,
    *,
    run_config: UserConfig | None = None,
    node_configs: Sequence[UserConfig] | None = None,
    shuffle: int | None = None,
    grid: Grid | None = None,
) -> Context:
    """Run a complete Flower app in this process.

    Parameters
    ----------
    server_app : ServerApp
        Server app with a main function.
    client_app : ClientApp or mapping of int to ClientApp
        As for `InProcessGrid`.
    num_partitions : int
        Number of nodes, each with a ``partition-id`` and ``num-partitions`` in its configuration.
    run_config, shuffle
        As for `InProcessGrid`.
    node_configs : sequence of dict, optional
        More configuration of each node.
    grid : Grid, optional
        Grid in place of one built from the other arguments.

    Returns
    -------
    Context
        Context of the server, with the state that the main function left.
    """
    if grid is None:
        if client_app is None or num_partitions is None:
            raise FieldError(
                "client_app", client_app, "give a client_app and num_partitions, or a grid"
            )
        count = require_count("num_partitions", num_partitions)
        extra = node_configs or [{}] * count
        if len(extra) != count:
            raise FieldError(
                "node_configs", len(extra), f"must hold one configuration for each of {count} nodes"
            )
        configs = [{"partition-id": i, "num-partitions": count, **extra[i]} for i in range(count)]
        grid = InProcessGrid(client_app, configs, run_config, shuffle=shuffle)
    context = Context(RUN, SERVER_NODE, {}, RecordDict(), dict(run_config or {}))
    with message_identity():
        server_app(grid, context)
    return context


@contextmanager
def message_identity() -> Iterator[None]:
    """Allow creating Flower messages outside Flower's own runtimes within this context."""
    try:
        from flwr.supercore.task_identity import TaskIdentity

        before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    except (ImportError, AttributeError) as error:
        lacks = f"flwr {version('flwr')} lacks what the in-process grid needs ({error})"
        raise ImportError(
            f"{lacks}: install one that has it, as 1.42, or use Flower's simulation"
        ) from error
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = 1, RUN, SERVER_NODE
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
