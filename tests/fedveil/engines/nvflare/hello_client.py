"""Training code with the structure of FLARE's first example: evaluate, train, log, send."""

import nvflare.client as flare
import torch
from nvflare.client.tracking import SummaryWriter

from hello_kit import SimpleNetwork, dataset

flare.init()
x, y = dataset(flare.get_site_name())
model, writer = SimpleNetwork(), SummaryWriter()
while flare.is_running():
    received = flare.receive()
    model.load_state_dict(received.params)
    accuracy = float((model(x).argmax(1) == y).float().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        writer.add_scalar(tag="loss", scalar=loss.item(), global_step=step)
    sent = {"params": model.cpu().state_dict(), "metrics": {"accuracy": accuracy}}
    flare.send(flare.FLModel(**sent, meta={"NUM_STEPS_CURRENT_ROUND": 5}))
