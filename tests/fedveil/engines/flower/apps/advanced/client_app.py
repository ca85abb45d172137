"""A client that counts its rounds in Flower's state and keeps its head to itself."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..quickstart.task import Net, load_data
from ..quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    if "rounds" not in context.state:
        context.state["rounds"] = MetricRecord({"seen": 0})
    context.state["rounds"]["seen"] += 1
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    trainloader, _ = load_data(partition_id, num_partitions, 32)
    loss = train_fn(model, trainloader, 2, msg.content["config"]["lr"], "cpu")
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)
