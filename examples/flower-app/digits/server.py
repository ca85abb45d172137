"""The server: FedVeil's strategy; what it knows of the cost is in its log, and in the folder that `out` names."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from digits.task import LAYOUT, accuracy, network
from fedveil.accounting import Filter
from fedveil.flower import FedVeilStrategy, ServerFolder, method_from

app = ServerApp()


@app.main()
def main(grid, context):
    """Run the method that the configuration names."""
    config, method = context.run_config, method_from(context)
    strategy = FedVeilStrategy(
        method,
        LAYOUT,
        rounds=int(config["rounds"]),
        clients=int(config["clients"]) or None,
        min_clients=int(config["min-clients"]),
        budget=Filter(epsilon=8, delta=1e-5) if method.name == "global" else None,
        folder=ServerFolder(config["out"]) if config["out"] else None,
        evaluate=False,
    )
    result = strategy.start(grid, ArrayRecord(network().state_dict()))
    reached = accuracy(result.arrays.to_torch_state_dict())
    print(f"test accuracy {reached:.3f}; {strategy.guarantee.describe(1e-5)}", flush=True)
    context.state["arrays"] = result.arrays
