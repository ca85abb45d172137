"""The client: it trains on its ward's table."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import Net, load_data
from .task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    torch.manual_seed(42)
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    trainloader = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    loss = train_fn(net, trainloader, epochs, lr, torch.device("cpu"))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
