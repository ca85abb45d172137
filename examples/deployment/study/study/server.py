"""The server: FedVeil's strategy, with the hospitals' method."""

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

from fedveil.aggregation import FedAvg
from fedveil.flower import FedVeilStrategy, ServerFolder
from fedveil.layout import Layout
from fedveil.methods import build

app = ServerApp()


@app.main()
def main(grid, context):
    """Run four rounds over three hospitals, of which two have to answer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    strategy = FedVeilStrategy(
        build("record", FedAvg(), examples=466, epsilon=8.0, rounds=4, clip=1.0, steps=10),
        Layout.from_module(model),
        rounds=4,
        clients=3,
        min_clients=2,
        folder=ServerFolder(context.run_config["out"]),
    )
    result = strategy.start(grid, ArrayRecord(model.state_dict()), timeout=float(context.run_config["patience"]))
    images, labels = load_digits(return_X_y=True)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    found = model(torch.tensor(images[1400:] / 16, dtype=torch.float32)).argmax(1)
    right = float((found == torch.tensor(labels[1400:])).float().mean())
    print(f"test accuracy {right:.3f}; {strategy.guarantee.describe(1e-5)}", flush=True)
