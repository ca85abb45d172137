"""What an app, a run or a start in another way can do to a node, on Flower's real chain: nothing unprotected leaves.

One SuperLink and one SuperNode under `fedveil node` serve all runs; each run is another attempt.
"""

import hashlib
import json
import os
import shutil
import sys

import pytest
from chain import BIN, SECRET, Chain, site, wait, write_app
from flwr.cli.build import build_fab_from_disk

from fedveil.errors import FedVeilError
from fedveil.node.guard import WORDS
from fedveil.node.isolation import require_isolation

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
HEAD = """
import os, sys
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
"""
PLAIN = """
app = ClientApp()

def raw(message, context):
    arrays = {n: torch.full(tuple(a.shape), 42.0) for n, a in message.content["arrays"].items()}
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 7, "loss": 42.0})}
    content["patient-4711"] = ConfigRecord({"patient-4711": "patient-4711"})
    return Message(RecordDict(content), reply_to=message)

app.train()(raw)
app.evaluate()(raw)
app.query()(raw)
"""
PATCHED = f"""
import fedveil.engines.flower.mod as mod
import fedveil.flower
mod.privacy_mod = fedveil.flower.privacy_mod = mod.records.write_reply = None
{PLAIN}
"""
AGAIN = f"""
app = ClientApp()

@app.train()
def train(message, context):
    stock = {str(BIN / "flwr-clientapp")!r}
    parent = open(f"/proc/{{os.getppid()}}/cmdline").read().split("\\0")
    words = parent[parent.index("--runtime-api-address"):] if "--runtime-api-address" in parent else ["--token", "x"]
    os.execv(stock, [stock, *[word for word in words if word]])
"""
RAISING = f"""
print({SECRET!r})
app = ClientApp()

@app.train()
def train(message, context):
    print({SECRET!r}, file=sys.stderr)
    raise ValueError({SECRET!r})
"""
APPS = {
    "plain": PLAIN,
    "patched": PATCHED,
    "again": AGAIN,
    "raising": RAISING,
    "booking": PLAIN,
    "seeding": PLAIN,
}
# a run can only set keys that its app's configuration has
CONFIGS = {"booking": 'privacy.ledger = "run"', "seeding": "privacy.seed = 1"}
METHOD = 'privacy.method="group" privacy.noise-multiplier=0.01'


def sha256(app):
    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    try:
        require_isolation(folder)
    except FedVeilError as error:
        pytest.skip(str(error))
    apps = {
        name: write_app(folder / name, name, HEAD + text, config=CONFIGS.get(name, ""))
        for name, text in APPS.items()
    }
    hashes = json.dumps([sha256(app) for app in apps.values()])
    apps["other"] = write_app(folder / "other", "other", HEAD + PLAIN)
    projects = json.dumps([f"tests/{name}" for name in APPS])
    rules = f"apps = {hashes}\nprojects = {projects}"
    place = site(folder / "site", rules, top="hypotheses_apart = 10.0\ndeadline = 90")
    with Chain(folder) as chain:
        # what Flower itself would load for the first app: a folder under the first digits of its hash
        planted = chain.home / "apps" / f"tests.plain.1.0.0.{sha256(apps['plain'])[:8]}"
        shutil.copytree(apps["plain"], planted)
        (planted / "plain_client.py").write_text((HEAD + PLAIN).replace("42.0", "-4200.0"))
        # PATH is not set: `fedveil node start` finds what it starts, and what that starts
        bare = {name: value for name, value in chain.env.items() if name != "PATH"}
        chain.supernode(0, place, more=METHOD, env=bare)

        def run(name, **config):
            arrived = chain.run(
                apps[name],
                folder / f"{name}-{len(list(folder.glob('*.json')))}.json",
                400,
                **config,
            )
            assert SECRET not in json.dumps(arrived)
            [reply] = arrived["replies"]
            return reply

        run.chain, run.folder = chain, folder
        run.ledger, run.log = place / "ledgers" / "0.jsonl", folder / "node0.log"
        yield run


def released(reply):
    """Every number of a protected reply, which has no other record."""
    assert reply["records"] == ["arrays", "fedveil.reply", "metrics"]
    assert reply["others"]["metrics"] == {"num-examples": 1}
    return sorted(value for values in reply["arrays"].values() for value in values)


@pytest.mark.parametrize("name", ["plain", "patched"])
def test_without_the_mod_or_with_the_mod_patched_away_it_is_noised(held, name):
    before = held.ledger.read_text().count("\n")
    values = released(held(name))
    assert (
        0 < abs(values[len(values) // 2] - 42) < 21
    )  # what was hashed ran, and not what lay there under its name
    assert 42.0 not in values
    assert held.ledger.read_text().count("\n") == before + 2


@pytest.mark.parametrize("name", ["again", "raising"])
def test_an_app_that_becomes_another_program_or_raises_is_a_zero_update(held, name):
    values = released(held(name))
    assert abs(values[len(values) // 2]) < 21
    assert (SECRET in held.log.read_text()) or name == "again"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("other", {}),  # not listed
        ("plain", {"kind": "query"}),
        ("booking", {}),
        ("seeding", {}),
    ],
)
def test_what_is_refused_is_a_constant_word(held, name, config):
    before = held.ledger.read_text()
    reply = held(name, **config)
    assert reply["reason"] in WORDS.values()
    assert held.ledger.read_text() == before


AGENT = """
import json
from flwr.agentapp import AgentApp

app = AgentApp()

@app.main()
def main(agent, context):
    def call(name, **arguments):
        return json.loads(agent.grid.call({"name": name, "call_id": name, "arguments": arguments})["output"])

    nodes = call("get_nodes", sample_size=None)["nodes"]
    asked = [{"dst_node_id": node["id"], "payload": "x", "reply_to_message_id": None} for node in nodes]
    sent = [one["message_id"] for one in call("push_messages", messages=asked)["results"]]
    found = call("pull_messages", message_ids=sent, timeout=200)
    with open("{out}", "w") as file:
        json.dump({"replies": found["messages"]}, file)
"""
START = """
import sys
from flwr.cli.build import build_fab_from_disk
from flwr.cli.chat.chat_app import start_chat_run
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from pathlib import Path

client = init_http_client_from_connection(read_superlink_connection("here"))
print(start_chat_run(client, "go", None, None, fab_content=build_fab_from_disk(Path(sys.argv[1]))))
"""


def test_an_agents_task_gets_a_constant_word_and_runs_nothing(held):
    before, out = held.ledger.read_text(), held.folder / "agent.json"
    app = write_app(held.folder / "agent", "agent", AGENT.replace("{out}", str(out)))
    about = app / "pyproject.toml"
    about.write_text(
        about.read_text().replace('clientapp = "agent_client:app"', 'agentapp = "agent_client:app"')
    )
    wait(lambda: "SuperNode ID" in held.log.read_text(), 60, *held.chain.logs)
    held.chain.begin("agent", [sys.executable, "-c", START, app])
    wait(lambda: out.exists() and out.read_text().endswith("}"), 300, *held.chain.logs)
    [reply] = json.loads(out.read_text())["replies"]
    assert (reply["payload"], reply["error"]) == (None, WORDS[901])
    assert "flwr-agentapp is refused" in held.log.read_text()
    assert held.ledger.read_text() == before


def test_evaluation_is_answered_without_data(held):
    reply = held("plain", kind="evaluate")
    assert reply["records"] == ["fedveil.reply", "metrics"]
    assert reply["others"]["metrics"] == {"num-examples": 1}


def test_a_supernode_by_its_absolute_path_and_without_a_path_runs_nothing(tmp_path):
    with Chain(tmp_path) as chain:
        bare = {name: value for name, value in chain.env.items() if name != "PATH"}
        node = chain.supernode(0, more=METHOD, env=bare, command=[BIN / "flower-supernode"])
        wait(
            lambda: node.poll() is not None or "flower-superexec" in chain.logs[-1].read_text(),
            90,
            *chain.logs,
        )
        assert "No such file" in chain.logs[-1].read_text()
        assert str(BIN) not in os.defpath.split(os.pathsep)
