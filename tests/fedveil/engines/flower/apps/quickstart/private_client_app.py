"""A client of Flower's quickstart in its form: train and evaluate functions around `task.py`."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedveil as fv
from fedveil.flower import privacy_mod
from fedveil.learning import LocalTraining, PrivateTrainer

from .private_task import Net, load_data
from .private_task import test as test_fn
from .private_task import train as train_fn

method = fv.RecordDP(loop="app", epsilon=8, rounds=4, steps=20, rate=0.3, clip=1.0, examples=375)
trainer = PrivateTrainer(Net(), fv.Layout.from_module(Net()), LocalTraining(lr=0.1, momentum=0.9), method.noisy_steps)
app = ClientApp(mods=[privacy_mod(trainer.layout, method, trainer=trainer, ledger="run")])


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cpu")
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    trainloader, _ = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    _, testloader = load_data(partition_id, num_partitions, context.run_config["batch-size"])
    loss, accuracy = test_fn(model, testloader, torch.device("cpu"))
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
