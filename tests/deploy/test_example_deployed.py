"""examples/flower-app as its README deploys it: each node reads its own file, and nobody says how many there are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from chain import BIN, SLOWER, Chain, free_port, wait
from sklearn.datasets import load_digits

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
APP = Path(__file__).resolve().parents[2] / "examples" / "flower-app"


def test_whoever_is_connected_takes_part(tmp_path):
    app, out = tmp_path / "app", tmp_path / "run"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    images, labels = load_digits(return_X_y=True)
    for site in range(2):
        np.savez(tmp_path / f"{site}.npz", x=images[site:600:2], y=labels[site:600:2])
    with Chain(tmp_path) as chain:
        for site in range(2):
            words = ["--superlink", f"127.0.0.1:{chain.port}", "--port", str(free_port())]
            data = f'data="{tmp_path / f"{site}.npz"}"'
            node = [BIN / "flower-supernode", "--insecure", *words, "--node-config", data]
            chain.begin(f"node{site}", node)
        go = [BIN / "flwr", "run", app, "here", "--stream", "--run-config"]
        chain.begin("run", [*go, f'rounds=2 out="{out}"'])
        wait((out / "summary.json").exists, 400 * SLOWER, *chain.logs)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rounds"], summary["replies"]["used"]) == (2, 4)
    assert summary["guarantee"].startswith("formal eps=")
