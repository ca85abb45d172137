"""An app that was not made for FedVeil (`foreign/ward`), changed as docs/flower.md says, on a real SuperLink and SuperNodes.

Once with the mod alone, once with its own loop kept; both end in the simulation's bits. Then its server is killed by
kill -9 in round 2, and goes on with ``resume=True``. All that changes in the app stands in `MOD` and `LOOP`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from chain import BIN, PYPROJECT, SLOWER, Chain, wait

from fedveil.flower import begin_ledger

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
APP = Path(__file__).with_name("foreign") / "ward"
ROUNDS, SITES = 3, 2
CONFIG = {"num-server-rounds": ROUNDS, "batch-size": 32, "local-epochs": 2, "lr": 0.05}
AVERAGES = "strategy = FedAvg(fraction_evaluate=0.0)"
IMPORTS = "import torch\nfrom flwr.app"
MOD = {
    "client_app.py": [
        (IMPORTS, f"import fedveil as fv\nfrom fedveil.flower import privacy_mod\n{IMPORTS}"),
        (
            "app = ClientApp()",
            'layout = fv.Layout.from_module(Net(), buffers="keep")\n'
            "method = fv.GlobalDP(epsilon=8, rounds=3, clip=2.0)\n"
            "app = ClientApp(mods=[privacy_mod(layout, method)])",
        ),
    ],
    "server_app.py": [
        (
            IMPORTS,
            "from fedveil.flower import ServerFolder, WrappedStrategy\n"
            f"from .client_app import layout, method\n{IMPORTS}",
        ),
        (
            AVERAGES,
            f"{AVERAGES}\n    folder = ServerFolder(out / 'run')\n"
            "    strategy = WrappedStrategy(strategy, method, layout, clients=2, folder=folder)",
        ),
    ],
}
LOOP = {
    "task.py": [
        (
            "import torch\nfrom sklearn",
            "from fedveil.flower import app_loop\nimport torch\nfrom sklearn",
        ),
        ("nn.BatchNorm1d(width)", "nn.GroupNorm(4, width)"),
        (
            "    running_loss, seen = 0.0, 0\n",
            "    running_loss, seen = 0.0, 0\n"
            "    trainloader = app_loop(net, optimizer, trainloader, passes=epochs)\n",
        ),
        ("            nn.utils.clip_grad_norm_(net.parameters(), 5.0)\n", ""),
    ],
    "client_app.py": [
        (
            IMPORTS,
            "import fedveil as fv\nfrom fedveil.flower import privacy_mod\n"
            f"from fedveil.learning import LocalTraining, PrivateTrainer\n{IMPORTS}",
        ),
        (
            "app = ClientApp()",
            'method = fv.RecordDP(loop="app", epsilon=8, rounds=4, steps=20, rate=0.2, clip=1.0, examples=200)\n'
            'local = LocalTraining(lr=0.05, optimizer="adam", loss=torch.nn.BCEWithLogitsLoss())\n'
            "trainer = PrivateTrainer(Net(), fv.Layout.from_module(Net()), local, method.noisy_steps)\n"
            "app = ClientApp(mods=[privacy_mod(trainer.layout, method, trainer=trainer)])",
        ),
    ],
    "server_app.py": [
        (
            IMPORTS,
            "from fedveil.flower import ServerFolder, WrappedStrategy\n"
            f"from .client_app import method, trainer\n{IMPORTS}",
        ),
        (
            AVERAGES,
            f"{AVERAGES}\n    folder = ServerFolder(out / 'run', resume=(out / 'run').exists())\n"
            "    strategy = WrappedStrategy(strategy, method, trainer.layout, rounds=3, clients=2, folder=folder)",
        ),
    ],
}
SEEDED = {
    "mod": (MOD, {"server_app.py": [("clients=2", "clients=2, seed=5")]}),
    "loop": (
        LOOP,
        {
            "client_app.py": [("trainer=trainer", 'trainer=trainer, ledger="run", seed=5')],
            "server_app.py": [("clients=2", "clients=2, seed=5")],
        },
    ),
}
SIMULATION = """
import json, sys
from fedveil.flower import run_in_process
from ward.client_app import app as client
from ward.server_app import app as server

run_in_process(server, client, {sites}, run_config={config} | {{"out": sys.argv[1]}})
"""


def written(folder, changes, *more):
    """The app with these lines changed, each of which stands there once."""
    shutil.copytree(APP, folder / "ward", ignore=shutil.ignore_patterns("__pycache__"))
    for change in (changes, *more):
        for name, lines in change.items():
            file = folder / "ward" / name
            text = file.read_text()
            for before, after in lines:
                assert text.count(before) == 1, (name, before)
                text = text.replace(before, after)
            file.write_text(text)
    config = "\n".join(f"{key} = {value}" for key, value in CONFIG.items())
    project = PYPROJECT.format(name="ward", config=config)
    for part in ("client", "server"):
        project = project.replace(f"ward_{part}:app", f"ward.{part}_app:app")
    (folder / "pyproject.toml").write_text(project)
    return folder


def simulated(app, out, env):
    """Play the app in one process of its own."""
    code = SIMULATION.format(sites=SITES, config=CONFIG)
    path = os.pathsep.join([str(app), env["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)],
        env=env | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Two wards on a SuperLink, each with the lifetime ledger of its table."""
    folder = tmp_path_factory.mktemp("foreign")
    with Chain(folder) as made:
        for site in range(SITES):
            ledger, head = folder / f"site{site}", folder / f"head{site}"
            begin_ledger(ledger, site, by="the tests", head=head)
            own = f'privacy.ledger="{ledger}" privacy.head="{head}"'
            made.supernode(site, of=SITES, more=own)
        yield made


def begun(chain, app, out):
    config = f'out="{out}"'
    go = [BIN / "flwr", "run", app, "here", "--stream", "--run-config", config]
    return chain.begin(f"run-{out.name}", go)


def history(out):
    return [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def charged(chain, site):
    """Number of releases that a ward's ledger has begun."""
    path = chain.folder / f"site{site}" / f"{site}.jsonl"
    return path.read_text().count('"digest": "open"')


def test_with_the_mod_it_ends_in_the_simulations_bits(chain, tmp_path):
    app = written(tmp_path / "app", *SEEDED["mod"])
    simulated(app, tmp_path / "simulated", chain.env)
    begun(chain, app, tmp_path / "deployed")
    wait((tmp_path / "deployed" / "model.pt").exists, 300 * SLOWER, *chain.logs)
    there, here = (tmp_path / name for name in ("deployed", "simulated"))
    assert history(there) == history(here)
    assert [one["round"] for one in history(there)] == [*range(ROUNDS + 1)]
    models = [torch.load(out / "model.pt") for out in (there, here)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    summaries = [json.loads((out / "run" / "summary.json").read_text()) for out in (there, here)]
    promises = [summary["guarantees"]["server"] for summary in summaries]
    assert promises[0] == promises[1]
    assert (promises[0]["status"], promises[0]["unit"]) == ("formal", "client")
    assert promises[0]["epsilon"] == pytest.approx(8.0, abs=1e-6)
    assert summaries[0]["rounds"] == ROUNDS


def test_with_its_own_loop_it_goes_on_after_its_server_was_killed(chain, tmp_path):
    app, out = written(tmp_path / "app", LOOP), tmp_path / "deployed"
    run = begun(chain, app, out)
    stored = out / "run" / "checkpoint" / "round.safetensors"
    wait(lambda: stored.exists() and len(history(out)) == 2, 300 * SLOWER, *chain.logs)
    [server] = chain.servers()
    os.kill(server, signal.SIGKILL)
    wait(lambda: not chain.servers(), 60 * SLOWER, *chain.logs)
    run.kill()
    assert not (out / "model.pt").exists()
    assert not (out / "run" / "summary.json").exists()
    begun(chain, app, out)
    wait((out / "model.pt").exists, 400 * SLOWER, *chain.logs)
    assert [one["round"] for one in history(out)] == [0, 1, 1, 2, 3]
    assert history(out)[-1]["accuracy"] > 0.8  # .96 and .99 in two simulations; .63 is guessing
    summary = json.loads((out / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["stopped"]) == (ROUNDS, "")
    for site in range(SITES):
        assert charged(chain, site) in (ROUNDS, ROUNDS + 1)  # a round that was lost is charged
