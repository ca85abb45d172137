"""A report of what Flower's ServerApp left behind."""

import json
import shutil

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits

from fedveil.aggregation import FedAvgM
from fedveil.flower import (
    FACTS,
    FedVeilStrategy,
    ServerFolder,
    begin_ledger,
    privacy_mod,
    read_broadcast,
    run_in_process,
    to_arrays,
    training_source,
    write_facts,
)
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.methods import build
from fedveil_lab.report.statement.check import check
from fedveil_lab.report.statement.document import ABSENT
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import write_report
from test_example_app import app  # noqa: F401  (a fixture)

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(("method", "proven"), [("global", True), ("sga-ldp", False)])
def test_a_deployed_run_is_reported_with_what_its_server_knows(app, tmp_path, method, proven):  # noqa: F811
    app(3, rounds=2, out=str(tmp_path / "run"), privacy__method=method)
    write_report(gather([tmp_path / "run"], [], None, None), tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    [said] = report["headline"]
    assert ("epsilon" in said["text"]) == proven
    sections = {section["name"]: section for section in report["sections"]}
    transport = sections["trust"]["lines"][0]["text"]
    assert transport == ABSENT  # the server does not know how its messages travelled
    shutil.copytree(tmp_path / "run" / "ledger", tmp_path / "elsewhere" / "ledger")
    file = tmp_path / "report" / "report.json"
    checked = {one.what: one.holds for one in check(file, [tmp_path / "elsewhere"])}
    assert checked[f"{method}: promise"] is (
        True if proven else None
    )  # quotes of local clients lie in no ledger here
    assert not [one for one in check(file, [tmp_path / "elsewhere"]) if one.holds is False]
    ledger = tmp_path / "elsewhere" / "ledger" / "server.jsonl"
    ledger.write_text(ledger.read_text().replace('"attempt": 0', '"attempt": 1', 1))
    assert [one for one in check(file, [tmp_path / "elsewhere"]) if one.holds is False]


def private_app(rounds):
    """Record-level privacy whose noise each client adds: a server's app with a folder, and the clients'."""
    torch.manual_seed(0)
    network = torch.nn.Linear(64, 10)
    layout = Layout.from_module(network)
    x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    method = build("record", FedAvgM(), examples=len(x) / 3, epsilon=4.0, rounds=rounds, clip=0.5)
    trainer = PrivateTrainer(network, layout, LocalTraining(lr=0.5), method.client.noisy_steps)
    client = ClientApp(mods=[privacy_mod(layout, method, trainer=trainer)])
    server = ServerApp()

    @client.train()
    def train(message, context):
        start = read_broadcast(message.content, layout).models
        mine = slice(context.node_config["partition-id"], None, 3)
        [made] = trainer.train_noisily(
            start, [ClientData(x[mine], y[mine])], [(0,)], [training_source()]
        )
        content = {
            "arrays": to_arrays(layout, made.model),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(
            RecordDict(content | {FACTS: write_facts(noised=made.noised)}), reply_to=message
        )

    @server.main()
    def main(grid, context):
        folder = ServerFolder(context.run_config["out"])
        strategy = FedVeilStrategy(method, layout, rounds=rounds, folder=folder, evaluate=False)
        strategy.start(grid, ArrayRecord(network.state_dict()))

    return server, client


def test_the_epsilon_of_clients_that_protect_themselves_is_recomputed_from_their_own_ledgers(
    tmp_path,
):
    names = ["charite", "mayo", "nikko"]
    for name in names:
        begin_ledger(tmp_path / "ledgers", name, by="the tests", head=tmp_path / "heads")
    own = {"privacy.ledger": str(tmp_path / "ledgers"), "privacy.head": str(tmp_path / "heads")}
    nodes = [{**own, "privacy.dataset": name} for name in names]
    server, client = private_app(2)
    run_in_process(server, client, 3, node_configs=nodes, run_config={"out": str(tmp_path / "run")})
    ledgers = [tmp_path / "ledgers" / f"{name}.jsonl" for name in names]
    write_report(gather([tmp_path / "run"], ledgers, None, None), tmp_path / "report")
    file = tmp_path / "report" / "report.json"
    [run] = json.loads(file.read_text())["evidence"]["runs"]
    counted = run["promises"]["worst of 3 clients, by their own ledgers"]
    assert counted["epsilon"] == pytest.approx(4.0)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "report", elsewhere / "report")
    shutil.copytree(tmp_path / "ledgers", elsewhere / "kept")
    shutil.copytree(tmp_path / "run" / "ledger", elsewhere / "ledger")
    file = elsewhere / "report" / "report.json"

    def checked():
        return {one.what: one.holds for one in check(file, [elsewhere])}

    found = checked()
    assert [what for what in found if what.endswith(": promise")]
    quoted = [
        what for what in found if "quotes" in what
    ]  # what the server was told is in no ledger
    assert [found.pop(what) for what in quoted] == [None]
    assert [found.pop(what) for what in [*found] if what.endswith("head")] == [None] * 3
    assert set(found.values()) == {True}
    two = [*ledgers[:2]]
    write_report(gather([tmp_path / "run"], two, None, None), tmp_path / "two")
    [run] = json.loads((tmp_path / "two" / "report.json").read_text())["evidence"]["runs"]
    assert "worst of 2 clients, by their own ledgers" in run["promises"]
    kept = elsewhere / "kept" / "mayo.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:-1]))
    assert False in checked().values()
    kept.write_text("".join([*lines[:-1], lines[-1].replace('"round": 2', '"round": 3')]))
    assert False in checked().values()
    kept.unlink()
    assert False in checked().values()
