"""A client of Flower's quickstart in its form: train and evaluate functions around `task.py`."""

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedveil as fv
from fedveil.flower import privacy_mod, write_trained
from fedveil.learning import LocalTraining, PrivateTrainer

from .private_task import Net, load_data
from .private_task import test as test_fn
from .private_task import train as train_fn

layout = fv.Layout.from_module(Net())
method = fv.RecordDP(loop="app", epsilon=8, rounds=4, steps=20, rate=0.3, clip=1.0, examples=375)
trainer = PrivateTrainer(Net(), layout, LocalTraining(lr=0.1, momentum=0.9), method.noisy_steps)
app = ClientApp(mods=[privacy_mod(layout, method, trainer=trainer, ledger="run")])


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cpu")
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    trainloader, _ = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    trained = train_fn(model, trainloader, msg.content["config"]["lr"], device, msg, trainer)
    return Message(content=write_trained(trained, layout), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    _, testloader = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    loss, accuracy = test_fn(model, testloader, torch.device("cpu"))
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
