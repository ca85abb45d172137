"""Training code of a site for FLARE's Client API: receive, evaluate, train, log, send."""

import nvflare.client as flare
import torch
from hello_model import SimpleNetwork, data
from nvflare.client.tracking import SummaryWriter
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

flare.init()
x, y = data(flare.get_site_name())
batches = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
network, loss, writer = SimpleNetwork(), nn.CrossEntropyLoss(), SummaryWriter()
optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
while flare.is_running():
    received = flare.receive()
    network.load_state_dict(received.params)
    with torch.no_grad():
        accuracy = float((network(x).argmax(1) == y).float().mean())
    for epoch in range(2):
        total = 0.0
        for some, digits in batches:
            optimizer.zero_grad()
            cost = loss(network(some), digits)
            cost.backward()
            optimizer.step()
            total += cost.item()
        writer.add_scalar(tag="loss", scalar=total, global_step=2 * received.current_round + epoch)
    sent = {"params": network.state_dict(), "metrics": {"accuracy": accuracy}}
    flare.send(flare.FLModel(**sent, meta={"NUM_STEPS_CURRENT_ROUND": 2 * len(batches)}))
