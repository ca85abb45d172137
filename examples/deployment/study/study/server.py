"""The server: FedVeil's strategy, with the hospitals' method."""

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

from fedveil.flower import FedVeilStrategy, ServerFolder
from fedveil.layout import Layout
from fedveil.methods import RecordDP

app = ServerApp()
METHOD = RecordDP(
    unit="person", people=155, records_per_person=3, sum="secure", least_sites=3,
    epsilon=8.0, rounds=3, retries=2, clip=0.5, lr=4.0,
)  # fmt: skip


@app.main()
def main(grid, context):
    """Run three rounds over three hospitals; a sum needs all of them, so one that is gone is waited for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    folder = ServerFolder(context.run_config["out"])
    strategy = FedVeilStrategy(
        METHOD, Layout.from_module(model), rounds=3, clients=3, folder=folder
    )
    result = strategy.start(
        grid, ArrayRecord(model.state_dict()), timeout=float(context.run_config["patience"])
    )
    images, labels = load_digits(return_X_y=True)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    found = model(torch.tensor(images[1400:] / 16, dtype=torch.float32)).argmax(1)
    right = float((found == torch.tensor(labels[1400:])).float().mean())
    print(
        f"the sums of run {strategy.broadcast.public.run!r}", flush=True
    )  # in every question, so that it can be checked
    print(f"test accuracy {right:.3f}; {strategy.guarantee.describe(1e-5)}", flush=True)
