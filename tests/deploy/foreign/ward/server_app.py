"""The server: it averages, measures each round on rows of its own, and keeps a history and the last model."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from .task import Net, load_central
from .task import test as test_fn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(context.run_config["out"])
    out.mkdir(exist_ok=True)
    torch.manual_seed(42)

    def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        accuracy = test_fn(net, load_central(), torch.device("cpu"))
        with open(out / "history.jsonl", "a") as file:
            file.write(json.dumps({"round": server_round, "accuracy": accuracy}) + "\n")
        return MetricRecord({"accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), out / "model.pt")
