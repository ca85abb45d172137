"""The launcher against Flower's own SuperNode API: what it hands back for each kind of task."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from flwr.app import Context, RecordDict
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import utils
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message

from fedveil.engines.flower.records import REFUSED
from fedveil.node import launch
from fedveil.node.guard import WORDS
from node_kit import GROUP, HEAD, PLAIN, SECRET, bundle, hash_of, lines, request, run, site

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("runtime")]


@pytest.fixture
def supernode():
    """A SuperNode's state and the address of its API."""
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    app = create_app(state_factory=factory, superexec_auth_secret=None)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(1500):
        if server.started:
            break
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield factory.state(), f"127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture
def played(supernode, tmp_path, monkeypatch):
    """Have a task of a kind run by the launcher: the replies that the SuperNode would send, and the task."""
    state, address = supernode
    (tmp_path / "own_client.py").write_text(
        HEAD + PLAIN.replace("def raw(", f"print('{SECRET}')\n\ndef raw(")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_client", raising=False)
    monkeypatch.setattr(utils, "disable_process_dumping", lambda strict: None)
    policy = site(tmp_path / "node", 'client = "own_client:app"')

    def play(kind, message=None):
        content, info = bundle(), run()
        info.fab_hash, info.series_id = hash_of(content), 7
        state.set_node_id(1)
        state.store_run(info)
        state.store_fab(Fab(info.fab_hash, content, {}))
        context = Context(1, 1, {"partition-id": 2, **GROUP}, RecordDict(), {}, 7)
        state.set_run_series_context(7, context)
        more = {TaskType.MODEL: {"model_ref": "m"}, TaskType.CONNECTOR: {"connector_ref": "c"}}.get(
            kind, {}
        )
        task = state.create_task(task_type=kind, run_id=1, fab_hash=info.fab_hash, **more)
        _insert_message(message or request(), state, state.object_store)
        client = RuntimeHttpClient.from_server_address(address, True, None, interceptors=[])
        token = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind])).token
        words = ["--runtime-api-address", address, "--token", token, "--insecure"]
        code = launch.main(
            [str(policy), str(kind), *words, "--allow-runtime-dependency-installation"]
        )
        [found] = state.get_tasks(task_ids=[task])
        return code, list(state.get_messages_legacy(is_reply=True)), found, policy

    return play


def test_a_clients_task_is_answered_by_the_mod_and_finished(played):
    code, [reply], task, policy = played(TaskType.CLIENT_APP)
    assert code == 0
    assert not reply.has_error()
    assert (task.status.status, task.status.sub_status) == ("finished", "completed")
    assert lines(policy) == 2
    assert SECRET not in task.status.details


def test_an_agents_task_gets_a_constant_word_and_runs_nothing(played):
    _, [reply], task, policy = played(TaskType.AGENT_APP)
    assert (reply.error.code, reply.error.reason) == (REFUSED, WORDS[REFUSED])
    assert (task.status.sub_status, task.status.details) == ("failed", "")
    assert lines(policy) == 0


@pytest.mark.parametrize(
    "kind", [TaskType.CONNECTOR, TaskType.MODEL, TaskType.SERVER_APP, TaskType.SIMULATION]
)
def test_other_tasks_end_without_a_word(played, kind):
    _, replies, task, policy = played(kind)
    assert replies == []
    assert (task.status.status, task.status.sub_status, task.status.details) == (
        "finished",
        "failed",
        "",
    )
    assert lines(policy) == 0


def test_a_heartbeat_that_comes_late_interrupts_nothing(played, monkeypatch):
    """Of a task that was finished meanwhile it is unauthorised, and Flower then interrupts its process."""
    monkeypatch.setattr(
        HeartbeatSender, "_heartbeat", lambda sender: time.sleep(0.5) or sender.heartbeat_fn()
    )
    _, _, task, _ = played(TaskType.CONNECTOR)
    time.sleep(0.7)
    assert task.status.sub_status == "failed"


def test_the_launcher_ends_with_the_process_that_started_it():
    """However that ended, and whatever the launcher is doing."""
    inner = "from fedveil.node.launch import end_with_starter; import time; end_with_starter(); print('up', flush=True)"
    child = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {inner + '; time.sleep(60)'!r}])"
    outer = f"{child}; print(p.pid, flush=True); p.wait()"
    starter = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    said = {starter.stdout.readline().strip(), starter.stdout.readline().strip()}
    pid = int((said - {"up"}).pop())
    starter.kill()
    starter.wait()
    for _ in range(200):
        if not alive(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it outlived its starter")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("missing", ["flwr.common.args"])
def test_another_flower_is_refused_by_what_it_lacks(monkeypatch, caplog, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    caplog.set_level("ERROR", "flwr")
    assert launch.main(["policy.toml", launch.CLIENT, "--runtime-api-address", "127.0.0.1:1"]) == 1
    assert missing in caplog.text
