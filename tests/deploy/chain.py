"""Flower's real chain on loopback: a SuperLink and SuperNodes, ended by their ids; apps written by the tests."""

import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedveil.node.site import begin_site

BIN = Path(sys.executable).parent
SECRET = (
    "patient-4711"  # in data, exceptions and prints of hostile apps: must never reach the server
)
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1.0.0"
description = "a test"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "{name}_server:app"
clientapp = "{name}_client:app"
[tool.flwr.app.config]
out = ""
kind = "train"
{config}
"""
# Asks every node that is connected for one round, and writes down all that arrives.
SERVER = """
import json, time
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from fedveil.engines.flower.records import HELLO, to_arrays, write_broadcast
from fedveil.layout import Layout
from fedveil.methods import Broadcast, PublicFacts

app = ServerApp()
LAYOUT = Layout.from_shapes({"weight": (3, 2), "bias": (3,)})


@app.main()
def main(grid, context):
    config, until = context.run_config, time.monotonic() + 60
    while len(list(grid.get_node_ids())) < 1 and time.monotonic() < until:
        time.sleep(0.5)
    nodes = list(grid.get_node_ids())
    public = PublicFacts(round=1, rounds=2, cohort=1, dimension=LAYOUT.size)
    content = write_broadcast(Broadcast(models=torch.zeros(1, LAYOUT.size), public=public), LAYOUT)
    messages = [Message(content, node, config["kind"]) for node in nodes]
    seen = []
    for reply in grid.send_and_receive(messages, timeout=300):
        if reply.has_error():
            seen.append({"code": reply.error.code, "reason": reply.error.reason})
        else:
            records = reply.content
            arrays = {
                f"{name}/{array}": value.numpy().reshape(-1).tolist()
                for name, record in records.array_records.items()
                for array, value in record.items()
            }
            others = {n: dict(r) for n, r in [*records.metric_records.items(), *records.config_records.items()]}
            seen.append({"arrays": arrays, "others": others, "records": sorted(reply.content)})
    with open(config["out"], "w") as file:
        json.dump({"nodes": len(nodes), "replies": seen}, file)
"""


def environment(home, **more):
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
    found = list(filter(None, sys.path))
    if "CHAIN_PATIENCE" in os.environ:
        found.insert(0, str(Path(__file__).with_name("patient")))
    return os.environ | quiet | {"PATH": path, "PYTHONPATH": os.pathsep.join(found)} | more


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def end(process):
    """End a process of ours, and its children, by its id."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(30)


SLOWER = max(1.0, int(os.environ.get("CHAIN_PATIENCE", "30")) / 30)


def wait(condition, seconds, *logs):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.3)
    raise AssertionError(
        "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-4000:]}"
            for log in logs
            if log.exists()
        )
    )


def certificates(folder, later=0):
    """A root and a server certificate for 127.0.0.1, valid from an hour ago, or so many hours later."""
    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=later)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("demo root", "localhost")
    ]

    def made(subject, key, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(names[0])
            .public_key(key.public_key())
        )
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(
            now - datetime.timedelta(hours=1)
        )
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    local = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    (folder / "ca.crt").write_bytes(
        made(names[0], keys[0], (x509.BasicConstraints(ca=True, path_length=None), True))
    )
    (folder / "server.crt").write_bytes(made(names[1], keys[1], (local, False)))
    secret = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.key").write_bytes(secret)
    return folder


def node_key(path):
    """A SuperNode's key, and its public half beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    public = path.with_suffix(".pub")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return path, public


def write_app(folder, name, client, server=SERVER, config=""):
    """An app's folder."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, config=config))
    (folder / f"{name}_client.py").write_text(client)
    (folder / f"{name}_server.py").write_text(server)
    return folder


def site(folder, admission, total="participations = 50", top="", by="the tests"):
    """A node's folder with its policy."""
    head = folder.with_name(f"{folder.name}-head")
    begin_site(folder, head, "0", by)
    (folder / "policy.toml").write_text(
        f'{top}\n[total]\n{total}\n[node]\nledger = "ledgers"\nhead = "{head}"\ndataset = "0"\n{admission}\n'
    )
    (folder / "policy.toml").chmod(0o600)
    return folder


class Chain:
    """A SuperLink on loopback."""

    def __init__(self, folder, tls=None, auth=False):
        self.folder, self.tls, self.auth = folder, tls, auth
        self.home, self.port = folder / "home", free_port()
        self.env, self._stack, self.logs = environment(self.home), ExitStack(), []

    def __enter__(self):
        self.home.mkdir()
        how = "insecure = true" if self.tls is None else f'root-certificates = "{self.tls}/ca.crt"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{how}\n'
        )
        how = ["--insecure"]
        if self.tls is not None:
            names = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
            how = [
                part
                for name, file in names.items()
                for part in (f"--ssl-{name}", str(self.tls / file))
            ]
        how += ["--enable-supernode-auth"] if self.auth else []
        self._link = [
            str(BIN / "flower-superlink"),
            *how,
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        ]
        self.begin_link("link")
        return self

    def begin_link(self, name):
        """Start the SuperLink; again, where it was killed."""
        self.link = self.begin(name, self._link)
        wait(lambda: is_open(self.port), 90 * SLOWER, *self.logs)

    def __exit__(self, *error):
        self._stack.close()

    def begin(self, name, command, env=None):
        """Start a process in a session of its own; it is ended with the chain at the latest."""
        log = self.folder / f"{name}.log"
        self.logs.append(log)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdout=file,
                stderr=file,
                env=env or self.env,
                start_new_session=True,
            )
        self._stack.callback(end, process)
        return process

    def servers(self):
        """Ids of the ServerApps of this chain that live."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                ours = f"FLWR_HOME={self.home}".encode() in path.read_bytes()
                words = path.with_name("cmdline").read_bytes()
                if ours and b"flwr-serverapp" in words:
                    found.append(int(path.parent.name))
        return found

    def supernode(
        self,
        partition=0,
        site=None,
        of=1,
        more="",
        key=None,
        secure=None,
        name=None,
        env=None,
        command=None,
    ):
        """A SuperNode, under `fedveil node` if it has a site."""
        node = more or "privacy.noise-multiplier=1.0"
        words = command or ["flower-supernode"]
        words = [*words, "--superlink", f"127.0.0.1:{self.port}", "--port", free_port()]
        secure = self.tls is not None if secure is None else secure
        words += ["--root-certificates", self.tls / "ca.crt"] if secure else ["--insecure"]
        words += ["--auth-supernode-private-key", key] if key is not None else []
        words += ["--node-config", f"partition-id={partition} num-partitions={of} {node}"]
        if site is not None:
            words = [sys.executable, "-m", "fedveil", "node", "start", site, *words]
        else:
            words[0] = words[0] if os.path.isabs(str(words[0])) else BIN / words[0]
        return self.begin(name or f"node{partition}", words, env)

    def run(self, app, out, seconds=120, **config):
        """Run an app, and what its server wrote down."""
        values = {"out": str(out), **config}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        self.begin(
            f"run-{out.name}", [BIN / "flwr", "run", app, "here", "--stream", "--run-config", text]
        )
        wait(lambda: out.exists() and out.read_text().endswith("}"), seconds, *self.logs)
        return json.loads(out.read_text())
