"""Run FLARE's simulator in copies of a process that has imported FLARE, so that a run takes seconds, not minutes.

Run as ``python -m fedveil_lab.verify.flare_side``. It reads requests and writes answers on the standard
streams, like the module `zygote`. For a run it forks a copy of itself, which is the simulator. FLARE would start a new
interpreter for each site's worker; here this is another copy. Copies begin with libraries alone, so no state of one run
reaches another.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedveil_lab.verify.flare_probe import flare_watch
from fedveil_lab.verify.zygote import fresh_entropy, receive, send

PROBE = Path(__file__).with_name("flare_probe")
WORKER = "nvflare.private.fed.app.simulator.simulator_worker"
LIBRARIES = (
    "numpy.random",
    "torch",
    "nvflare.private.fed.app.simulator.simulator_runner",
    "nvflare.private.fed.app.deployer.base_client_deployer",
    "nvflare.private.fed.app.simulator.simulator_worker",
    "nvflare.private.fed.simulator.simulator_client_app_runner",
    "nvflare.app_common.workflows.fedavg",
    "nvflare.app_common.workflows.scatter_and_gather",
    "nvflare.app_common.executors.client_api_executor",
    "nvflare.app_opt.pt.file_model_persistor",
    "nvflare.client",
    "fedveil_lab.verify.neighbours",
)
MOST_TEXT = 1 << 20  # bytes of what a run prints that are kept


class Forker:
    """Process without threads that is copied for each site. The simulator has threads, so it cannot be copied itself."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.here, there = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.here.close()
            try:
                _fork_on_request(there, run)
            finally:
                os._exit(0)
        there.close()

    def start(self, arguments: list[str], environment: dict[str, str]) -> int:
        """Start a site's worker, and return its process id."""
        stream = self.here.makefile("rwb")
        send(stream, {"arguments": arguments, "environment": environment})  # type: ignore[arg-type]
        found: int = receive(stream)  # type: ignore[arg-type]
        return found


def _fork_on_request(there: socket.socket, run: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers leave nothing behind
    stream = there.makefile("rwb")
    while (request := receive(stream)) is not None:  # type: ignore[arg-type]
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            there.close()
            try:
                _be_worker(request["arguments"], request["environment"], run)
            finally:
                os._exit(0)
        send(stream, pid)  # type: ignore[arg-type]


def _be_worker(arguments: list[str], environment: dict[str, str], run: dict[str, Any]) -> None:
    """Run a site's worker in this process, as FLARE would have started it."""
    os.setsid()  # as FLARE starts it: a worker whose parent has ended kills its own group
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.argv = [WORKER, *arguments]
    fresh_entropy()
    flare_watch.close_network()
    flare_watch.watch_site(run, arguments[arguments.index("--client") + 1])
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)


class ForkedWorker:
    """Handle of a site's worker, with the part of `subprocess.Popen` that the simulator uses.

    Parameters
    ----------
    pid : int
        Process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """0 if the process has ended, else None."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def poll(self) -> int | None:
        """Return 0 if the process has ended, else None, as `subprocess.Popen.poll` does."""
        return self.returncode

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 60.0) -> int:
        """Wait at most `timeout` seconds until the process has ended."""
        until = time.monotonic() + timeout
        while self.returncode is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(WORKER, timeout)
            time.sleep(0.05)
        return 0


def simulate(run: dict[str, Any]) -> int:
    """Run a job in FLARE's simulator, and return its exit status; 0 means success."""
    runner = importlib.import_module("nvflare.private.fed.app.simulator.simulator_runner")
    forker, popen = Forker(run), subprocess.Popen

    def started(command: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(command, list) and WORKER in command:
            own = command[command.index(WORKER) + 1 :]
            return ForkedWorker(forker.start(own, dict(options["env"])))
        return popen(command, *arguments, **options)

    runner.subprocess.Popen = started
    flare_watch.close_network()
    found = runner.SimulatorRunner(
        job_folder=run["job"],
        workspace=run["workspace"],
        clients=",".join(run["sites"]),
        threads=len(run["sites"]),
        log_config="concise",
    ).run()
    return int(found or 0)


def child(run: dict[str, Any], said: int) -> None:
    """Make one run in its own process group."""
    os.setpgid(0, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    folder = Path(run["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "run.json"
    settings.write_text(json.dumps(run), encoding="utf-8")
    os.environ[flare_watch.SETTINGS] = str(settings)
    paths = [str(PROBE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(one for one in paths if one)
    os.chdir(folder)
    fresh_entropy()
    status = simulate(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(min(status, 100))


def run_once(run: dict[str, Any]) -> dict[str, Any]:
    """Make one run in a copy of this process, end what is left of it after the time limit, and return its outcome."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            try:
                child(run, said.fileno())
            finally:
                os._exit(101)
        until, status = time.monotonic() + run["timeout"], None
        while status is None and time.monotonic() < until:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(code)
            else:
                time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if status is None:
            os.waitpid(pid, 0)
        text = os.pread(said.fileno(), MOST_TEXT, 0).decode(errors="replace")
    return {"status": status, "said": text}


def serve() -> None:
    """Answer requests until there are no more."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1):
        os.dup2(nothing, handle)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()
    while (request := receive(requests)) is not None:
        send(answers, run_once(request))


if __name__ == "__main__":
    serve()
