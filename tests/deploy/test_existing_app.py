"""An app in the form of Flower's quickstart, whose own loop is kept, on a real SuperLink and SuperNodes."""

import shutil
from pathlib import Path

import pytest
from chain import PYPROJECT, Chain

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
APP = Path(__file__).parents[1] / "fedveil" / "engines" / "flower" / "apps" / "quickstart"
CONFIG = """
num-server-rounds = 4
batch-size = 32
lr = 0.1
fraction-evaluate = 0.0
"""
WRITTEN = """    import json

    import torch

    task = __import__("quickstart.private_task", fromlist=["Net"])
    net, (images, labels) = task.Net(), task.everything()
    net.load_state_dict(result.arrays.to_torch_state_dict())
    right = (net(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    with open(context.run_config["out"], "w") as file:
        json.dump({"accuracy": float(right), "promise": strategy.guarantee.describe(1e-5)}, file)
"""


def test_quickstart_with_records_protected_in_its_own_loop(tmp_path):
    app = tmp_path / "app"
    shutil.copytree(APP, app / "quickstart", ignore=shutil.ignore_patterns("__pycache__"))
    project = PYPROJECT.format(name="quickstart", config=CONFIG)
    for part in ("client", "server"):
        project = project.replace(f"quickstart_{part}:app", f"quickstart.private_{part}_app:app")
    (app / "pyproject.toml").write_text(project)
    server = app / "quickstart" / "private_server_app.py"
    server.write_text(server.read_text() + WRITTEN)
    with Chain(tmp_path) as chain:
        for partition in range(2):
            chain.supernode(partition, of=2, more="study='none'")
        found = chain.run(app, tmp_path / "out.json", 900)
    assert found["accuracy"] > 0.3
    assert found["promise"].startswith("conditional eps=8 ")
