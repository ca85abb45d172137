"""A ServerApp that is killed in the middle of a run, on Flower's real chain: a second run goes on from its folder."""

import json

import pytest
from chain import BIN, Chain, wait, write_app

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
ROUNDS, KILLED = 3, 2
CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedveil.flower import from_arrays, privacy_mod, to_arrays
from fedveil.layout import Layout

LAYOUT = Layout.from_shapes({"weight": (6,)})
app = ClientApp(mods=[privacy_mod(LAYOUT, "vanilla")])


@app.train()
def train(message, context):
    vector = from_arrays(LAYOUT, message.content["arrays"]) + 1
    content = {"arrays": to_arrays(LAYOUT, vector), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
"""
SERVER = f"""
import json, os, signal
import torch
import fedveil as fv
from flwr.serverapp import ServerApp
from fedveil.flower import FedVeilStrategy, ServerFolder, to_arrays

app = ServerApp()
LAYOUT = fv.Layout.from_shapes({{"weight": (6,)}})


@app.main()
def main(grid, context):
    config, folder = context.run_config, context.run_config["out"] + ".run"
    again = os.path.exists(folder)

    def kill(number, arrays):
        if not again and number == {KILLED}:
            os.kill(os.getpid(), signal.SIGKILL)

    kept = ServerFolder(folder, resume=again)
    method = fv.GlobalDP(epsilon=8, rounds={ROUNDS}, clip=1.0)
    strategy = FedVeilStrategy(method, LAYOUT, clients=2, folder=kept, evaluate=False)
    began = strategy.done
    strategy.start(grid, to_arrays(LAYOUT, torch.zeros(6)), evaluate_fn=kill)
    with open(config["out"], "w") as file:
        json.dump({{"began": began, "played": [log.number for log in strategy.history]}}, file)
"""


def test_a_second_run_goes_on_after_the_first_ones_server_was_killed(tmp_path):
    app = write_app(tmp_path / "app", "killed", CLIENT, SERVER)
    out = tmp_path / "out.json"
    folder = tmp_path / "out.json.run"
    with Chain(tmp_path) as chain:
        for partition in range(2):
            chain.supernode(partition, of=2, more="study='none'")
        values = f'out="{out}"'
        chain.begin("first", [BIN / "flwr", "run", app, "here", "--stream", "--run-config", values])
        rounds = folder / "metrics.jsonl"
        checkpoint = folder / "checkpoint" / "round.safetensors"
        done = lambda: (  # noqa: E731
            rounds.exists() and rounds.read_text().count("\n") == KILLED and checkpoint.exists()
        )
        wait(done, 200, *chain.logs)
        found = chain.run(app, out, 200)
    assert found == {"began": KILLED, "played": [KILLED + 1]}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == ROUNDS
    assert summary["guarantees"]["server"]["epsilon"] == pytest.approx(8.0, abs=1e-6)
    openings = [
        json.loads(line) for line in (folder / "ledger" / "server.jsonl").read_text().splitlines()
    ]
    assert (
        len([line for line in openings if "opening" in line]) == 2
    )  # two runs of Flower's, one ledger
