"""The client: the training code of any Flower app, behind one mod."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from digits.task import LAYOUT, fit, network, of_client
from fedveil.flower import FACTS, privacy_mod, read_broadcast, write_facts

# ledger="run" is for simulations; a node's own privacy.ledger comes before it.
app = ClientApp(
    mods=[privacy_mod(LAYOUT, policy=Path(__file__).parent / "policy.toml", ledger="run")]
)


@app.train()
def train(message, context):
    """Train the model that fits best (there is one, except under group privacy)."""
    x, y = of_client(context)
    candidates = read_broadcast(message.content, LAYOUT).models
    models = [network() for _ in candidates]
    for model, vector in zip(models, candidates, strict=True):
        LAYOUT.load(model, vector)
    with torch.no_grad():
        losses = [float(cross_entropy(model(x), y)) for model in models]
    chosen = losses.index(min(losses))
    fit(models[chosen], x, y)
    content = RecordDict(
        {
            "arrays": ArrayRecord(models[chosen].state_dict()),
            "metrics": MetricRecord({"num-examples": len(x), "train_loss": losses[chosen]}),
            FACTS: write_facts(chosen),
        }
    )
    return Message(content, reply_to=message)
