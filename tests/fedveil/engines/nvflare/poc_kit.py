"""FLARE's proof of concept on loopback: a server and sites, each with its own startup kit, in processes of their own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import yaml
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.lighter.provision import gen_default_project_config
from nvflare.recipe import ProdEnv
from nvflare.tool.poc.poc_commands import get_prod_dir, prepare_poc_provision

import fedveil as fv

HERE, ADMIN = Path(__file__).parent, "admin@nvidia.com"
MAIN = "nvflare.private.fed.app"
PATIENCE = float(os.environ.get("POC_PATIENCE", "600"))  # seconds for a job, on a busy machine


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scope(name, **arguments):
    """A scope of a site's privacy.json, protected by FedVeil's filters of these arguments."""
    asks = {"path": "fedveil.nvflare.PrivacyFilter", "direction": "in", "args": arguments}
    sends = {"path": "fedveil.nvflare.ReleaseFilter", "direction": "out"}
    return {"name": name, "task_data_filters": [asks], "task_result_filters": [sends]}


def privacy(scopes, **guard):
    """What stands in a site's privacy.json: scopes, the first one the default, and the guard."""
    part = {"id": "fedveil_guard", "path": "fedveil.nvflare.JobGuard", "args": guard}
    return {"scopes": scopes, "default_scope": scopes[0]["name"], "components": [part]}


class Poc:
    """A server and sites; their processes are ended by their ids.

    Parameters
    ----------
    folder : Path
        Empty.
    privacy : dict
        By site, what stands in its privacy.json.
    unguarded : tuple of str
        Sites without `SiteGuard`.
    """

    def __init__(self, folder, privacy, unguarded=()):
        self.folder, self.privacy, self.names = folder / "poc", privacy, sorted(privacy)
        self.unguarded = unguarded
        self.processes = {}

    def __enter__(self):
        self.folder.mkdir()
        self._provision()
        path = [str(Path(fv.__file__).parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")]
        quiet = {"OMP_NUM_THREADS": "1", "FEDVEIL_SEEN": str(self.folder / "seen.bin")}
        self.env = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(path)}
        (self.folder / "seen.bin").touch()
        try:
            self._start("server", "server.server_train", "fed_server.json")
            for name in self.names:
                how = [f"uid={name}"]
                self._start(name, "client.client_train", "fed_client.json", *how)
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        for pid in self.pids():  # processes of jobs have groups of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self, part=""):
        """Processes whose command names this folder, and a part of it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                    if f"{self.kits}/{part}" in command and MAIN in command:
                        found.append(int(entry.name))
        return found

    def _provision(self):
        project = self.folder / "project.yml"
        gen_default_project_config("dummy_project.yml", str(project))
        values, self.port = yaml.safe_load(project.read_text()), free_port()
        for participant in values["participants"]:
            if participant["type"] == "server":
                participant["fed_learn_port"] = participant["admin_port"] = self.port
        project.write_text(yaml.safe_dump(values))
        given = {"clients": self.names, "number_of_clients": len(self.names), "docker_image": None}
        prepare_poc_provision(workspace=str(self.folder), **given)
        self.kits = Path(get_prod_dir(str(self.folder), values["name"]))
        for name in self.names:
            local = self.kits / name / "local"
            (local / "privacy.json").write_text(json.dumps(self.privacy[name]))
            own = ["fedveil.engines.nvflare.executor.FedVeilExecutor"]
            own += [f"fedveil.engines.nvflare.swarm.Swarm{part}" for part in ("Peer", "Server")]
            self._resources(local, own, name not in self.unguarded, allow_log_streaming=False)
        own = ["fedveil.nvflare.FedVeilController"]
        self._resources(self.kits / "server" / "local", own)

    def _resources(self, local, own, guarded=False, **changes):
        default = local / "resources.json.default"
        if not (local / "resources.json").exists():
            shutil.copy(default, local / "resources.json")
        values = json.loads((local / "resources.json").read_text())
        values.setdefault("class_allow_list", []).extend(own)
        if guarded:
            guard = {"id": "fedveil_site_guard", "path": "fedveil.nvflare.SiteGuard"}
            values["components"].append(guard)
        (local / "resources.json").write_text(json.dumps({**values, **changes}))

    def _start(self, name, module, config, *options):
        kit = self.kits / name
        command = [sys.executable, "-u", "-m", f"{MAIN}.{module}", "-m", str(kit), "-s", config]
        command += ["--set", "secure_train=true", *options, "org=nvidia", "config_folder=config"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.env, cwd=kit, start_new_session=True
            )

    def session(self):
        kit = str(self.kits / ADMIN)
        return new_secure_session(username=ADMIN, startup_kit_location=kit, timeout=60)

    def _wait(self):
        """Wait until all sites are connected."""
        until, found = time.monotonic() + 180, []
        while time.monotonic() < until:
            with suppress(Exception):
                session = self.session()
                found = [client.name for client in session.get_system_info().client_info]
                session.close()
                if len(found) == len(self.names):
                    return
            time.sleep(2)
        raise AssertionError(f"only {found} connected; {self.tail()}")

    def tail(self):
        texts = [f"== {log.name}\n{log.read_text()[-1500:]}" for log in self.folder.glob("*.log")]
        return "\n".join(texts)

    def run(self, recipe, scope=""):
        """Run a recipe in FLARE's production environment: the status of its job, and its id."""
        if scope:
            recipe._job.job.meta_props = {"scope": scope}
        env = ProdEnv(startup_kit_location=str(self.kits / ADMIN), login_timeout=60)
        job = recipe.execute(env).get_job_id()
        return self.ended(job), job

    def ended(self, job):
        """The status with which a job ended."""
        until, status = time.monotonic() + PATIENCE, ""
        session = self.session()
        try:
            while time.monotonic() < until:
                status = str(session.get_job_meta(job).get("status"))
                if status.startswith(("FINISHED", "FAILED", "ABORTED")):
                    return status
                time.sleep(1)
        finally:
            session.close()
        raise AssertionError(f"the job is {status} after {PATIENCE:g} s; {self.tail()}")

    def log(self, name, job=None):
        """What a process wrote of its own, or of a job."""
        place = self.kits / name if job is None else self.kits / name / job
        return "".join(path.read_text() for path in sorted(place.glob("log.txt*")))

    def result(self, job, folder):
        """The server's folder of a job that ended."""
        session = self.session()
        try:
            return Path(session.download_job_result(job, str(folder)))
        finally:
            session.close()
