"""A server of Flower's quickstart in its form: FedAvg over the configured rounds."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import WrappedStrategy

from .private_client_app import method, trainer
from .private_task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fraction_evaluate = context.run_config["fraction-evaluate"]
    num_rounds = context.run_config["num-server-rounds"]
    lr = context.run_config["lr"]
    arrays = ArrayRecord(Net().state_dict())
    strategy = WrappedStrategy(FedAvg(fraction_evaluate=fraction_evaluate), method, trainer.layout)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
    context.state["arrays"] = result.arrays
