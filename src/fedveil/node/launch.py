"""Command that Flower starts in place of its own ``flwr-clientapp``; Flower's other task commands are refused.

Flower's SuperExec starts it by name for one message. It takes the message from the SuperNode, gets the reply from
`guard.answer`, and returns it. It installs nothing and sends no log. After a failure before the reply it sends
nothing.
"""

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.metadata import version
from threading import Thread

from fedveil.logs import logger

_LOG = logger("flwr")
CLIENT = "flwr-clientapp"
OTHERS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
LOOK = 1.0  # seconds between two checks that the process that started this one is alive
REPLIES = (CLIENT, "flwr-agentapp")  # kinds of task for which a message of the SuperLink waits


def main(argv: Sequence[str]) -> int:
    """Run one task. The arguments are ``POLICY COMMAND``, and then Flower's own arguments of that command."""
    policy, task, *rest = argv
    try:
        from flwr.common.args import add_args_flwr_app_common

        parser = ArgumentParser(prog=task)
        parser.add_argument("--runtime-api-address", required=True)
        add_args_flwr_app_common(parser=parser, include_token_stdin=True)
        return _run(policy, task, parser.parse_args(rest))
    except ImportError as error:
        lacks = "FedVeil: flwr %s lacks what `fedveil node` needs (%s); nothing leaves: install one that has it, as 1.42"
        _LOG.error(lacks, version("flwr"), error)
    except Exception as error:
        _LOG.error("FedVeil: nothing leaves this node", exc_info=error)
    return 1


def end_with_starter() -> None:
    """Start a thread that ends this process soon after its parent has ended."""
    starter = os.getppid()

    def watch() -> None:
        while os.getppid() == starter:
            time.sleep(LOOK)
        os._exit(1)  # at any time, as a ledger's line is on the disk before a release leaves

    if os.name == "posix":
        Thread(target=watch, daemon=True).start()


def _run(policy: str, task: str, arguments: Namespace) -> int:
    from flwr.app import Error, Message
    from flwr.common.args import try_obtain_flwr_app_token
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supercore.utils import disable_process_dumping
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    disable_process_dumping(strict=False)  # the token is in memory
    if arguments.parent_pid is not None:
        start_parent_process_monitor(arguments.parent_pid)
    certificates = validate_and_resolve_root_certificates(
        arguments.root_certificates, arguments.insecure
    )
    token = try_obtain_flwr_app_token(arguments)
    client = RuntimeHttpClient.from_server_address(
        server_address=arguments.runtime_api_address,
        insecure=arguments.insecure,
        root_certificates=certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name=CLIENT),
            RuntimeTokenHttpInterceptor(token),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    context, status = None, SubStatus.FAILED
    try:
        if task != CLIENT:
            _LOG.error("FedVeil: a task of type %s is refused on this node", task)
        if task not in REPLIES:
            client.PullTaskInput(PullTaskInputRequest())
            return 0
        message, context, run, fab = pull_task_input(
            client
        )  # within 30 s of the claim, so before the slow imports

        from fedveil.engines.flower.records import REFUSED
        from fedveil.node.guard import WORDS, answer

        if task == CLIENT:
            reply = answer(policy, message, context, run, fab.content)
            status = SubStatus.COMPLETED
        else:
            reply = Message(Error(REFUSED, WORDS[REFUSED]), reply_to=message)
        push_message(client, reply, context)
        return 0
    finally:
        if (
            heartbeat.is_running
        ):  # a heartbeat of a task that is finished would interrupt this process
            heartbeat.stop()
        push_task_output(client, context, status, "")
        client.close()


if __name__ == "__main__":
    end_with_starter()
    sys.exit(main(sys.argv[1:]))
