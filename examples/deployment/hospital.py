"""A hospital's own client, installed at the site: `policy.toml` names it, and no code that arrives with a run is run.

Person level under a secure sum: what leaves is the noised sum of all patients' clipped gradients under masks, and the
server learns the sum over all three hospitals alone.
"""

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from fedveil.flower import privacy_mod, read_broadcast, training_source, write_trained
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.methods import RecordDP

ROUNDS, IMAGES = 3, 3  # of one patient


def network():
    """The model of the study."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


LAYOUT = Layout.from_module(network())
METHOD = RecordDP(
    unit="person", people=155, records_per_person=IMAGES, sum="secure", least_sites=3,
    epsilon=8.0, rounds=ROUNDS, retries=2, clip=0.5, lr=4.0,
)  # fmt: skip
EXAMPLE = (
    torch.zeros(0, 1, 8, 8),
    torch.zeros(0, dtype=torch.int64),
)  # the declared shape of images and labels
TRAINER = PrivateTrainer(network(), LAYOUT, LocalTraining(), METHOD.noisy_steps, example=EXAMPLE)
app = ClientApp(mods=[privacy_mod(LAYOUT, METHOD, trainer=TRAINER, rounds=ROUNDS)])


def patients(partition):
    """This hospital's images: a part of the public digits, and whose each of them is (made up)."""
    images, labels = load_digits(return_X_y=True)
    mine = slice(partition, 1400, 3)
    x, y = (
        torch.tensor(images[mine] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8),
        torch.tensor(labels[mine]),
    )
    return ClientData(x, y, person=torch.arange(len(y)) // IMAGES)


@app.train()
def train(message, context):
    """Clip and sum; the mod adds noise and masks."""
    models = read_broadcast(message.content, LAYOUT).models
    data = patients(int(context.node_config["partition-id"]))
    [trained] = TRAINER.train_noisily(models, [data], [(0,)], [training_source()])
    return Message(write_trained(trained, LAYOUT), reply_to=message)
