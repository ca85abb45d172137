"""The newcomer's way, one step after another: the pages' commands on data, networks and apps of one's own.

The pages' own blocks run as they stand in test_readme, test_tutorial and tests/fedveil/engines/flower/test_readme_app.
"""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedveil as fv
from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import load, parse
from fedveil_lab.games.membership import MembershipGame
from fedveil_lab.runs.prepare import prepare


def fedveil(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


SHORT = ("--set", "rounds=2", "--set", "privacy.rounds=2")


@pytest.mark.few(0)
@pytest.mark.usefixtures("undrawn")
def test_own_images_from_a_folder_to_a_comparison_an_audit_and_more_rounds(home):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, top in (("ill", 255), ("well", 90)):
        (home / "scans" / label).mkdir(parents=True)
        for i in range(24):
            image.fromarray(rng.integers(0, top, (40, 36, 3), np.uint8)).save(
                home / "scans" / label / f"{i}.png"
            )
    fedveil("init", "--data", "scans", "--clients", 4, "--protect", "client", "scans.toml")
    assert "clients" in fedveil("data", "show", "scans.toml")
    table = fedveil("compare", "scans.toml", *SHORT, "--out", "beside")
    assert "no privacy" in table
    assert "conditional eps" in table  # the names of classes were read off the folder
    fedveil("advise", "scans.toml")
    plain = ("--set", "privacy.method=vanilla")
    fedveil("run", "scans.toml", "--set", "rounds=2", *plain, "--out", "mine")
    fedveil("run", "mine", "--resume", "--set", "rounds=3")
    assert len((home / "mine" / "metrics.jsonl").read_text().splitlines()) == 3
    small = (*SHORT, "--set", "model.name=logistic")
    told = fedveil(
        "audit", "scans.toml", *small, "--attack", "loss", "--replicates", 4, "--out", "attacked"
    )
    assert told.index("takes part?") < told.index("advantage")


def test_own_table(home):
    pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    rows = [
        f"{age},{rng.choice(['f', 'm'])},{'ill' if age > 55 else 'well'}"
        for age in rng.integers(20, 90, 120)
    ]
    (home / "ward.csv").write_text("\n".join(["age,sex,outcome", *rows]))
    fedveil("init", "--data", "ward.csv", "--clients", 3, "--protect", "record", "ward.toml")
    assert "record" in fedveil("run", "ward.toml", *SHORT, "--out", "ward")
    assert (home / "ward" / "table.md").exists()


class Net(nn.Module):
    """With batch normalisation, and an answer that is an object."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
        )

    def forward(self, x):
        return {"logits": self.body(x)}


def test_own_network_with_batch_normalisation():
    x = torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0.5).long()
    clients = [(x[i:80:4], y[i:80:4], x[80 + i :: 4], y[80 + i :: 4]) for i in range(4)]
    with pytest.raises(FieldError, match="mend"):
        fv.Federation(model=Net(), clients=clients)
    model = fv.learning.mend(Net())
    method = fv.GlobalDP(epsilon=8.0, delta=1e-5, rounds=2, clip=0.1)
    history = fv.Federation(model=model, clients=clients, method=method, seed=1).run(2)
    model.load_state_dict(history.state_dicts[0])
    assert history.metrics["examples"] == 40
    assert "eps=8" in history.guarantee.describe(delta=1e-5)
    own = fv.Federation(model=Net(), clients=clients, shared=fv.Shared(buffers="keep"), seed=1)
    kept = own.run(2)
    one = Net()
    one.load_state_dict({**kept.state_dicts[0], **own.clients[0].buffers})
    assert kept.metrics["examples"] == 40


@pytest.mark.flower
def test_own_flower_app_turned_private():
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from fedveil.flower import FedVeilStrategy, privacy_mod, run_in_process

    x, y = torch.rand(40, 6), torch.arange(40) % 2
    start = {name: value.clone() for name, value in nn.Linear(6, 2).state_dict().items()}
    method = fv.methods.build("global", epsilon=8.0, delta=1e-5, rounds=2, clip=0.5)
    layout = fv.Layout.from_module(nn.Linear(6, 2))
    client, server, found = ClientApp(mods=[privacy_mod(layout, method)]), ServerApp(), []

    @client.train()
    def train(message, context):
        model, mine = nn.Linear(6, 2), slice(context.node_config["partition-id"], None, 2)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": 20}),
        }
        return Message(RecordDict(reply), reply_to=message)

    @server.main()
    def main(grid, context):
        result = FedVeilStrategy(method, layout, rounds=2).start(grid, ArrayRecord(start))
        found.append(result.arrays.to_torch_state_dict())

    run_in_process(server, client, num_partitions=2)
    [state] = found
    nn.Linear(6, 2).load_state_dict(state)
    assert not torch.equal(state["bias"], start["bias"])


def test_the_delta_that_noise_is_planned_for_is_looked_at_too():
    said = prepare(load("digits-record", ["privacy.delta=0.01"])).warnings
    assert any("1/n" in line and "records" in line for line in said)
    assert not prepare(load("digits-record")).warnings


def test_a_column_without_a_list_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("age,y\n30,0\n40,1\n")
    values = {
        "name": "table",
        "path": str(tmp_path / "t.csv"),
        "target": "y",
        "classes": 2,
        "columns": {"age": 120},
    }
    with pytest.raises(FieldError) as refused:
        prepare(
            parse(
                {
                    "name": "a",
                    "rounds": 1,
                    "data": {**values, "clients": 2},
                    "model": {"name": "logistic"},
                }
            )
        )
    assert refused.value.field == "data.columns.age"


def test_a_run_without_a_number_of_rounds_names_it():
    clients = [fv.ClientData(torch.rand(6, 2), torch.tensor([0, 1] * 3)) for _ in range(2)]
    with pytest.raises(FieldError) as refused:
        fv.Federation(model=nn.Linear(2, 2), clients=clients).run()
    assert refused.value.field == "rounds"


def test_membership_by_default_leaves_out_what_cannot_be_played_on_small_clients():
    config = load("digits-sga-ldp")
    game = MembershipGame(config)
    assert "fedmia" not in game.chosen
    assert "loss" in game.chosen
    assert any("min_size" in line for line in game.check())
    with pytest.raises(FieldError) as refused:
        MembershipGame(config, attacks=("fedmia",)).check()
    assert refused.value.field == "data.partition"
    assert "fedmia" in MembershipGame(load("digits-sga-ldp", ["data.min_size=3"])).chosen
