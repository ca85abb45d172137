"""A client that fine-tunes a model of texts."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedveil as fv
from fedveil.flower import privacy_mod, write_trained
from fedveil.learning import LocalTraining, PrivateTrainer

from .private_task import get_model, load_data
from .private_task import train as train_fn

layout = fv.Layout.from_module(get_model())
method = fv.RecordDP(loop="app", epsilon=8, rounds=3, steps=10, rate=0.3, clip=1.0, examples=160)
trainer = PrivateTrainer(get_model(), layout, LocalTraining(lr=0.05, optimizer="adamw"), method.noisy_steps)
app = ClientApp(mods=[privacy_mod(layout, method, trainer=trainer, ledger="run")])


@app.train()
def train(msg: Message, context: Context):
    net = get_model()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    trained = train_fn(net, trainloader, msg, trainer, device="cpu")
    return Message(write_trained(trained, layout), reply_to=msg)
