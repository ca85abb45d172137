"""examples/flower-app in one process; in the slow suite in Flower's simulation (with Ray) and on two SuperNodes."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from packaging.requirements import Requirement

from fedveil.accounting import epsilon_of_mu
from fedveil.errors import BudgetError
from fedveil.flower import InProcessGrid, method_from, run_in_process
from fedveil_lab.runs import Summary

pytestmark = pytest.mark.flower
ROOT = Path(__file__).resolve().parents[4]
APP = ROOT / "examples" / "flower-app"
BIN = Path(sys.executable).parent


def config_of(text):
    return flat(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])


def flat(values, prefix=""):
    """As Flower flattens a configuration."""
    found = {}
    for key, value in values.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


@pytest.fixture
def app(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from digits import client, server, task

    config = config_of((APP / "pyproject.toml").read_text())

    def play(clients, **changes):
        values = (
            config | {"clients": clients} | {k.replace("__", "."): v for k, v in changes.items()}
        )
        return run_in_process(server.app, client.app, clients, run_config=values), task

    return play


def test_one_key_switches_the_method_and_the_folder_tells_what_it_cost(app, tmp_path):
    folders = {}
    for method in ("global", "sga-ldp", "group"):
        folders[method] = tmp_path / method
        context, _ = app(3, rounds=1, out=str(folders[method]), privacy__method=method)
        assert set(context.state["arrays"]) == {"weight", "bias"}
    found = {method: Summary.read(folder).values for method, folder in folders.items()}
    assert [found[m]["trust"] for m in found] == ["central", "local", "local"]
    assert found["global"]["guarantee"].startswith("formal eps=")
    assert found["global"]["guarantees"]["server"]["epsilon"] == pytest.approx(
        epsilon_of_mu(1 / 1.5, 1e-5)
    )
    assert all("eps" not in found[m]["guarantee"] for m in ("sga-ldp", "group"))
    assert found["group"]["dimension"] == 650
    assert (folders["global"] / "ledger" / "server.jsonl").read_text().count('"combine"') == 1


def test_it_learns_with_a_formal_guarantee(app):
    context, task = app(
        20, rounds=3
    )  # accuracies .72 to .85; after two rounds .48 to .74, and below .4 at times
    assert task.accuracy(context.state["arrays"].to_torch_state_dict()) > 0.4


@pytest.mark.few(0)
def test_a_spent_budget_ends_it_with_the_last_model(app, tmp_path):
    out = tmp_path / "run"
    context, _ = app(9, rounds=20, out=str(out))
    summary = Summary.read(out)
    assert 5 < len(summary.rows) < 20
    assert "budget" in summary.stopped
    assert set(context.state["arrays"]) == {"weight", "bias"}


def test_a_method_that_the_policy_does_not_name_is_refused(app, tmp_path):
    with pytest.raises(BudgetError, match="policy"):
        app(3, rounds=1, privacy__method="ifca", out=str(tmp_path / "run"))


def test_a_node_of_a_deployment_reads_its_own_file_and_needs_no_partition(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(APP))
    from digits import client, server, task

    x, y = task.examples()
    for site in range(3):
        np.savez(tmp_path / f"{site}.npz", x=(x[site:600:3] * 16).numpy(), y=y[site:600:3].numpy())
    nodes = [{"data": str(tmp_path / f"{site}.npz")} for site in range(3)]
    out = tmp_path / "run"
    config = config_of((APP / "pyproject.toml").read_text()) | {"rounds": 2, "out": str(out)}
    run_in_process(server.app, grid=InProcessGrid(client.app, nodes, config), run_config=config)
    replies = Summary.read(out).values["replies"]
    assert (replies["used"], replies["failed"]) == (6, 0)


def test_the_bundle_has_what_flowers_hub_asks_for(tmp_path):
    copy = tmp_path / "app"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [BIN / "flwr", "build"],
        cwd=copy,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
    )
    [bundle] = copy.glob("*.fab")
    with ZipFile(bundle) as packed:
        names = packed.namelist()
        project = tomllib.loads(packed.read("pyproject.toml").decode())
    assert {"LICENSE", "README.md", "digits/client.py"} <= set(names), done.stderr
    about = project["tool"]["flwr"]["app"]
    assert (about["fab-format-version"], project["project"]["license"]) == (1, {"file": "LICENSE"})
    [need] = [
        Requirement(text) for text in project["project"]["dependencies"] if text.startswith("flwr")
    ]
    assert about["flwr-version-target"] in need.specifier


REFERENCE = (ROOT / "docs" / "configuration.md").read_text()
BLOCKS = [
    text for text in re.findall(r"```toml\n(.*?)```", REFERENCE, re.DOTALL) if "tool.flwr" in text
]


def test_the_reference_shows_what_pyproject_needs():
    [config] = map(config_of, BLOCKS)
    method = method_from(Context(1, 1, {}, RecordDict(), config))
    assert (method.name, method.planned) == ("global", 20)


# ---- Flower's own runtimes


@pytest.fixture
def packaged(tmp_path):
    """A copy of the app without requirements to install."""
    copy = tmp_path / "app"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def environment(home):
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return (
        os.environ | quiet | {"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(command, log, env):
    """A server in a session of its own, ended by its id, its children with it."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=env, start_new_session=True
        )
    try:
        yield process
    finally:
        end(process)


def end(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(30)


def wait(condition, seconds, *logs):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.5)
    raise AssertionError("\n".join(log.read_text(errors="replace")[-3000:] for log in logs))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "least"), [("global", 1), ("sga-ldp", 2)])
def test_on_two_supernodes_of_which_one_is_killed(method, least, packaged, tmp_path):
    home, out, link = tmp_path / "home", tmp_path / "run", free_port()
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    env, logs = (
        environment(home),
        [tmp_path / f"{name}.log" for name in ("link", "node0", "node1", "run")],
    )
    begin = [
        BIN / "flower-superlink",
        "--insecure",
        "--port",
        str(link),
        "--disable-runtime-dependency-installation",
    ]
    with server(begin, logs[0], env):
        wait(lambda: is_open(link), 60, logs[0])
        nodes = [
            f"--insecure --superlink 127.0.0.1:{link} --port {free_port()} --node-config".split()
            for _ in range(2)
        ]
        start = [
            [BIN / "flower-supernode", *n, f"partition-id={i} num-partitions=2"]
            for i, n in enumerate(nodes)
        ]
        with server(start[0], logs[1], env), server(start[1], logs[2], env) as second:
            config = f'rounds=6 clients=2 min-clients={least} out="{out}" privacy.method="{method}"'
            go = [
                BIN / "flwr",
                "run",
                str(packaged),
                "loopback",
                "--stream",
                "--run-config",
                config,
            ]
            with server(go, logs[3], env):
                wait(lambda: lines(out) >= 1, 900, *logs)
                end(second)
                wait((out / "summary.json").exists, 900, *logs)
    summary = json.loads((out / "summary.json").read_text())
    if least == 1:
        assert summary["rounds"] == 6
        assert summary["replies"]["failed"] > 0
        assert {"is gone: node unavailable", "is not connected"} & {
            row["failed"].get("1")
            for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        }
    else:
        assert "min_clients" in summary["stopped"]
        assert 1 <= summary["rounds"] < 6


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def lines(out):
    path = out / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation needs Ray")
def test_in_flowers_simulation(packaged, tmp_path):
    home, out, link = tmp_path / "home", tmp_path / "run", free_port()
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sim"\n\n[superlink.sim]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    env, logs = environment(home), [tmp_path / "link.log", tmp_path / "run.log"]
    begin = [BIN / "flower-superlink", "--insecure", "--simulation", "--port", str(link)]
    with server([*begin, "--disable-runtime-dependency-installation"], logs[0], env):
        wait(lambda: is_open(link), 60, logs[0])
        config = f'rounds=2 clients=4 out="{out}" privacy.method="group"'
        go = [
            BIN / "flwr",
            "run",
            str(packaged),
            "sim",
            "--stream",
            "--federation-config",
            "num-supernodes=4",
        ]
        with server([*go, "--run-config", config], logs[1], env):
            wait((out / "summary.json").exists, 900, *logs)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["replies"]["used"] == 8


def left_behind(home):
    """Ids of processes whose command names a folder."""
    told = {path.parent.name: path for path in Path("/proc").glob("[0-9]*/cmdline")}
    found = set()
    for process, path in told.items():
        with suppress(OSError):
            if str(home) in path.read_bytes().decode(errors="replace"):
                found.add(int(process))
    return found


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation needs Ray")
@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="the SuperLink that stays is found in /proc"
)
def test_flwr_run_as_the_readme_writes_it(packaged, tmp_path):
    home, lines = tmp_path / "home", (packaged / "README.md").read_text().splitlines()
    written = [line.split("#")[0].strip() for line in lines if line.startswith("    ")]
    setting = dict(
        line.removeprefix("export ").split("=") for line in written if line.startswith("export ")
    )
    command = next(line for line in written if line.startswith("flwr run . local"))
    env = environment(home)
    del env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
    ports = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
    env |= setting | {name: str(free_port()) for name in ports}
    go = [BIN / "flwr", *shlex.split(command)[1:]]
    try:
        done = subprocess.run(
            go, cwd=packaged, env=env, capture_output=True, text=True, timeout=900
        )
    finally:
        for process in left_behind(home):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        wait(lambda: not left_behind(home), 60)
    said = re.search(r"test accuracy (0\.\d+); formal", done.stdout)
    assert said, done.stdout[-3000:] + done.stderr[-3000:]
    assert float(said[1]) > 0.8
