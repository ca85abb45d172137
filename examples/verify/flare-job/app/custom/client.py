"""Training code for FLARE's Client API: one step, and the difference to the model that came."""

import nvflare.client as flare
import torch
from clinic_task import Network, load_data

flare.init()
x, y = load_data(flare.get_site_name())
while flare.is_running():
    received, model = flare.receive(), Network()
    model.load_state_dict(received.params)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    difference = {name: -p.grad for name, p in model.named_parameters()}
    flare.send(flare.FLModel(params=difference, params_type=flare.ParamsType.DIFF))
