"""A hospital's own client, installed at the site: `policy.toml` names it, and no code that arrives with a run is run.

Record level: each training step's sum of clipped gradients is noised on the node, so that no single image shows.
"""

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from fedveil.aggregation import FedAvg
from fedveil.flower import FACTS, privacy_mod, read_broadcast, to_arrays, training_source, write_facts
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.methods import build

ROUNDS = 4


def network():
    """The model of the study."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


LAYOUT = Layout.from_module(network())
METHOD = build("record", FedAvg(), examples=466, epsilon=8.0, rounds=ROUNDS, clip=1.0, steps=10)
TRAINER = PrivateTrainer(network(), LAYOUT, LocalTraining(lr=0.5), METHOD.client.noisy_steps)
app = ClientApp(mods=[privacy_mod(LAYOUT, METHOD, trainer=TRAINER, rounds=ROUNDS)])


def patients(partition):
    """This hospital's images: the part of the public digits that the demonstration gives it."""
    images, labels = load_digits(return_X_y=True)
    mine = slice(partition, 1400, 3)
    x = torch.tensor(images[mine] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return ClientData(x, torch.tensor(labels[mine]))


@app.train()
def train(message, context):
    """Train with the noise of the mod's source."""
    start = read_broadcast(message.content, LAYOUT).models
    data = patients(int(context.node_config["partition-id"]))
    [trained] = TRAINER.train_noisily(start, [data], [(0,)], [training_source()])
    content = {
        "arrays": to_arrays(LAYOUT, trained.model),
        "metrics": MetricRecord({"num-examples": 1}),
        FACTS: write_facts(noised=trained.noised),
    }
    return Message(RecordDict(content), reply_to=message)
