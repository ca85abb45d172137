"""Eight networks of the zoo by `fedveil run` with a module of one's own, and by a Flower client in one process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedveil as fv
from fedveil.cli import app
from fedveil.errors import NoReplyError
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from zoo_kit import ZOO

pytestmark = pytest.mark.slow
NAMES = (
    "CNN of the first tutorials, `.view`",
    "ResNet with BatchNorm",
    "ViT, attention written out",
    "Frozen backbone under `no_grad`, GroupNorm behind it",
    "GRU without `batch_first`",
    "Transformer encoder, table of positions",
    "BERT frozen, LoRA by hand",
    "Lightning module",
)
CELLS = [pytest.param(cell, id=cell.name) for cell in ZOO if cell.name in NAMES]
MODULE = """
import sys
sys.path.insert(0, {folder!r})
import torch
from zoo_kit import ZOO

class Given(torch.nn.Module):
    # an npz file holds numbers with a channel
    def __init__(self, cell):
        super().__init__()
        self.net, self.like = cell.make(), cell.x[0]

    def forward(self, x):
        return self.net(x.reshape(len(x), *self.like.shape).to(self.like.dtype))

def network(input_shape, outputs):
    return Given(next(cell for cell in ZOO if cell.name == {name!r}))
"""
CONFIG = """
name = "zoo"
rounds = 1
[data]
name = "npz"
path = {path!r}
classes = 3
clients = 2
partition = "iid"
[model]
name = "own_network_{number}:network"
[local]
batch_size = 3
lr = 0.05
[privacy]
{privacy}
"""
PRIVACY = {
    "plain": 'method = "vanilla"',
    "record": 'method = "record"\nexamples = 4\nnoise_multiplier = 1.0',
}


def test_there_are_eight():
    assert len(CELLS) == 8


@pytest.mark.parametrize("kind", PRIVACY)
@pytest.mark.parametrize("cell", CELLS)
def test_fedveil_run_trains_them_or_says_why_not(cell, kind, tmp_path, monkeypatch):
    number = f"{ZOO.index(cell)}_{kind}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = MODULE.format(folder=str(Path(__file__).parent), name=cell.name)
    (tmp_path / f"own_network_{number}.py").write_text(module)
    np.savez(tmp_path / "data.npz", x=cell.x.numpy(), y=cell.y.numpy())
    given = {"path": str(tmp_path / "data.npz"), "number": number, "privacy": PRIVACY[kind]}
    (tmp_path / "zoo.toml").write_text(CONFIG.format(**given))
    done = CliRunner().invoke(app, ["run", "zoo.toml", "--out", "out"])
    refused = getattr(cell, kind)
    if refused:
        assert done.exit_code == 2, done.output
        assert refused in " ".join(done.output.split())
    else:
        assert done.exit_code == 0, done.output
        assert list(tmp_path.glob("out/**/summary.json"))


@pytest.mark.flower
@pytest.mark.parametrize("cell", CELLS)
def test_a_flower_client_trains_them_at_record_level_or_says_why_not(cell):
    pytest.importorskip("flwr")
    method = fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1e-5, clip=1.0, examples=6, rounds=1
    )

    def trainer_of(model, layout):
        steps = method.client.noisy_steps
        return PrivateTrainer(
            model, layout, LocalTraining(lr=0.05), steps, example=(cell.x, cell.y)
        )

    torch.manual_seed(1)
    model = cell.make()
    if cell.record:
        with pytest.raises(fv.FieldError, match=cell.record):
            trainer_of(
                model,
                fv.Layout.from_module(model, buffers="keep" if cell.record != "mend" else "refuse"),
            )
        if not cell.mended:
            return
        model = fv.learning.mend(model)
    layout = fv.Layout.from_module(model)
    found = played(model, layout, method, trainer_of(model, layout), cell.x, cell.y)
    clients = [(cell.x[:6], cell.y[:6]), (cell.x[6:], cell.y[6:])]
    local = fv.LocalTraining(lr=0.05)
    embedded = fv.Federation(model=model, clients=clients, method=method, local=local).run(1)
    torch.testing.assert_close(found, embedded.models[0], rtol=0, atol=1e-4)


@pytest.mark.flower
def test_a_flower_simulation_of_which_every_client_fails_raises():
    """No server could tell: what leaves is noise."""
    pytest.importorskip("flwr")
    method = fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1.0, clip=1.0, examples=6, rounds=1
    )
    model = torch.nn.Sequential(torch.nn.Linear(6, 3))
    layout = fv.Layout.from_module(model)
    trainer = PrivateTrainer(model, layout, LocalTraining(), method.client.noisy_steps)
    x, y = torch.rand(12, 6), torch.arange(12) % 3
    assert torch.isfinite(played(model, layout, method, trainer, x, y)).all()
    one = torch.cat([torch.full((6,), 9), y[6:]])  # of one client no label is a class
    assert torch.isfinite(played(model, layout, method, trainer, x, one)).all()
    with pytest.raises(NoReplyError, match="every client failed"):
        played(model, layout, method, trainer, x, torch.full((12,), 9))


def played(model, layout, method, trainer, x, y):
    """The model [d] after a round of two nodes, whose code is one that people write."""
    from flwr.app import ArrayRecord, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from fedveil.flower import (
        FedVeilStrategy,
        privacy_mod,
        read_broadcast,
        run_in_process,
        training_source,
        write_trained,
    )

    client, server = (
        ClientApp(mods=[privacy_mod(layout, method, seed=3, trainer=trainer)]),
        ServerApp(),
    )

    @client.train()
    def train(message, context):
        half = slice(6 * int(context.node_config["partition-id"]), None)
        data = ClientData(x[half][:6], y[half][:6])
        models = read_broadcast(message.content, layout).models
        [trained] = trainer.train_noisily(models, [data], [(0,)], [training_source()])
        return Message(write_trained(trained, layout), reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = FedVeilStrategy(method, layout, rounds=1)
        context.state["arrays"] = strategy.start(grid, ArrayRecord(model.state_dict())).arrays

    arrays = run_in_process(server, client, num_partitions=2).state["arrays"].to_torch_state_dict()
    return layout.flatten({name: arrays[name] for name in layout.names})
