"""Training code for FLARE's Client API, as it would be without FedVeil."""

import nvflare.client as flare
import torch
from cancer_task import examples_of, network

flare.init()
x, y = examples_of(flare.get_site_name())
while flare.is_running():
    model, received = network(), flare.receive()
    model.load_state_dict(received.params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"num-examples": len(x)}))
