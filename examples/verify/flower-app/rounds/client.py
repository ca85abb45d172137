"""The client: one step on its own data."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from rounds import task

app = ClientApp()


@app.train()
def train(message, context):
    """Answer the model after one step."""
    x, y = task.load_data(context.node_config["partition-id"])
    [model] = message.content["arrays"].to_numpy_ndarrays()
    content = RecordDict(
        {
            "arrays": ArrayRecord([task.gradient_step(model, x, y)]),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
    )
    return Message(content, reply_to=message)
