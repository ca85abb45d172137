"""A server of scikit-learn's: the mean of the parameters."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import WrappedStrategy

from .private_client_app import layout, method
from .task import create_log_reg_and_instantiate_parameters, get_model_parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds = context.run_config["num-server-rounds"]
    model = create_log_reg_and_instantiate_parameters(0.01, 1)
    arrays = ArrayRecord(get_model_parameters(model))
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = WrappedStrategy(strategy, method, layout)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)
    context.state["arrays"] = result.arrays
