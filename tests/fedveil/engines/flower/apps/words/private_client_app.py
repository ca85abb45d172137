"""A client that fine-tunes a model of texts."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedveil as fv
from fedveil.flower import privacy_mod
from fedveil.learning import LocalTraining, PrivateTrainer

from .private_task import get_model, load_data
from .private_task import train as train_fn

method = fv.RecordDP(loop="app", epsilon=8, rounds=3, steps=10, rate=0.3, clip=1.0, examples=160)
layout = fv.Layout.from_module(get_model())
trainer = PrivateTrainer(get_model(), layout, LocalTraining(lr=0.05, optimizer="adamw"), method.noisy_steps)
app = ClientApp(mods=[privacy_mod(layout, method, trainer=trainer, ledger="run")])


@app.train()
def train(msg: Message, context: Context):
    net = get_model()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    train_fn(net, trainloader, epochs=context.run_config["local-epochs"], device="cpu")
    metrics = MetricRecord({"num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)
