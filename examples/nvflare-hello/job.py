"""FLARE's first example with one line of FedVeil's: for a whole site, which learns nothing, or for each image."""

import os
import sys
from pathlib import Path

import torch
from hello_model import KEPT, SITES, SimpleNetwork, pictures
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from safetensors.torch import load_file

import fedveil.nvflare

HERE = Path(__file__).parent
SITE = {"epsilon": 8.0, "delta": 1e-5, "rounds": 2, "clip": 0.5}


def main(level: str, work: str) -> None:
    """Run the job in FLARE's simulator, and print the accuracy of its last model on held-out images."""
    rounds = 2 if level == "site" else 10
    given = {"name": "hello", "min_clients": SITES, "num_rounds": rounds, "model": SimpleNetwork()}
    recipe = FedAvgRecipe(**given, train_script=str(HERE / "client.py"))
    if level == "site":
        fedveil.nvflare.protect(recipe, "global", parameters=SITE, seed=1)
    else:
        fedveil.nvflare.protect(recipe, site=HERE / "privacy.json", seed=1)
    recipe.execute(SimEnv(num_clients=SITES, workspace_root=work))
    [saved] = Path(work).rglob("fedveil/model.safetensors")
    network = SimpleNetwork()
    network.load_state_dict(load_file(saved))
    x, y = pictures(slice(KEPT, None))
    with torch.no_grad():
        accuracy = float((network(x).argmax(1) == y).float().mean())
    print(f"accuracy {accuracy:.3f} of {len(y)} held-out images")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    main(sys.argv[1], sys.argv[2])
