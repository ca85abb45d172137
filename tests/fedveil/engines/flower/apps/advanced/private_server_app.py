"""A server with a strategy of its own: it halves the rate, keeps the best model, and writes its results."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from fedveil.flower import WrappedStrategy

from ..quickstart.task import Net, everything
from .private_client_app import layout, method

app = ServerApp()


class CustomFedAvg(FedAvg):
    """Decays the learning rate, and saves the model whenever it is the best so far."""

    def __init__(self, folder, **options):
        super().__init__(**options)
        self.folder, self.best = Path(folder), 0.0

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] = float(config["lr"]) * 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
    ):
        train_config = ConfigRecord() if train_config is None else train_config
        arrays, result, rows = initial_arrays, Result(), []
        for number in range(1, num_rounds + 1):
            asked = self.configure_train(number, arrays, train_config, grid)
            replies = grid.send_and_receive(messages=asked, timeout=timeout)
            found, metrics = self.aggregate_train(number, replies)
            arrays = arrays if found is None else found
            central = evaluate_fn(number, arrays)
            rows.append({"round": number, "asked": len(list(asked)), **dict(metrics or {}), **dict(central)})
            if central["accuracy"] > self.best:
                self.best = central["accuracy"]
                torch.save(arrays.to_torch_state_dict(), self.folder / "best.pt")
            (self.folder / "results.json").write_text(json.dumps(rows))
        result.arrays = arrays
        return result


def evaluate(server_round, arrays):
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    images, labels = everything()
    accuracy = (net(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    return MetricRecord({"accuracy": float(accuracy)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = CustomFedAvg(config["folder"], fraction_train=0.5, min_train_nodes=2, fraction_evaluate=0.0)
    strategy = WrappedStrategy(strategy, method, layout)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["lr"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    context.state["arrays"] = result.arrays
