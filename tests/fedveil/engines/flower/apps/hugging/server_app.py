"""A server that averages adapters."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict

from .task import get_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds = context.run_config["num-server-rounds"]
    strategy = FedAvg(fraction_evaluate=0.0)
    arrays = ArrayRecord(get_peft_model_state_dict(get_model()))
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)
    context.state["arrays"] = result.arrays
