"""Run somebody's function in fresh processes, so that no state of one run reaches another.

A process imports the file's libraries and is copied for each run (`zygote`). Each copy imports the file itself anew. A
library with its own threads (JAX) cannot be copied. Then each run starts a new process, which takes seconds.
"""

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FedVeilError, FieldError, cleaned
from fedveil_lab.verify import zygote

THREADED = ("jax", "tensorflow")  # libraries that a copy of a process does not carry
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class NoVerdict(FedVeilError):
    """The subject cannot be judged: it raises, hangs, or returns something that is not an output.

    Parameters
    ----------
    why : str
        Reason in one sentence; "no verdict" is put before it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"no verdict: {why}")


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of one run.

    Attributes
    ----------
    kind : str
        ok, raised, unreadable, hangs or died.
    shape : str
        Shape of the output in words; for an error, its class.
    numbers : array
        All numbers that were returned, [d].
    why : str
        Reason, if `kind` is not ok.
    said : str
        Text that the run printed.
    seconds : float
        Duration.
    """

    kind: str
    shape: str
    numbers: NDArray[np.float64]
    why: str
    said: str
    seconds: float

    @property
    def label(self) -> str:
        """Label of the outcome, which an adversary sees before any number."""
        if self.kind != "ok":
            return f"{self.kind} {self.shape}".strip()
        words = [self.shape]
        if np.isnan(self.numbers).any():
            words.append("with NaN")
        if np.isinf(self.numbers).any():
            words.append("with infinity")
        return " ".join(words)


class FreshProcesses:
    """Run a mechanism's function, each time in a fresh process.

    Parameters
    ----------
    file : path
        Python file of the mechanism.
    function : str
        Name of the function ``(data, seed)``.
    timeout : float
        Seconds that a run may take.
    libraries : list of str, optional
        Modules that are imported before the process is copied. Default: the installed modules that the file imports,
        and later those that a run imported.
    """

    def __init__(
        self,
        file: Path,
        function: str,
        *,
        timeout: float = 30.0,
        libraries: list[str] | None = None,
    ) -> None:
        self.file, self.function, self.timeout = file.resolve(), function, timeout
        self.libraries = libraries_of(self.file) if libraries is None else libraries
        self.whole = any(name.partition(".")[0] in THREADED for name in self.libraries)
        self._worlds: dict[str, Any] = {}
        self._own = ("", "")
        self._folder = tempfile.TemporaryDirectory(prefix="fedveil-verify-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "FreshProcesses":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    @property
    def isolation(self) -> str:
        """How runs are isolated, in words."""
        return (
            "a process of its own"
            if self.whole
            else "a copy of a process that had imported only libraries"
        )

    def worlds_of_file(self, relation: str, unit: str) -> dict[str, tuple[Any, Any] | None]:
        """Return the worlds that the file defines itself, by name; empty if it has no function `worlds`.

        Each is a pair of data, or None if its data are no lists of arrays.
        """
        self._own = (relation, unit)
        found = self._ready({"ask": "names", "own": self._own, "timeout": self.timeout})
        if found["kind"] != "ok":
            raise NoVerdict(f"{self.file.name} {found['kind']}: {cleaned(found['why'], 300)}")
        return dict(found["worlds"])

    def hold(self, world: str, data: Any) -> None:
        """Keep a world's data for its runs."""
        self._worlds[world] = data
        if self._process is not None:
            self._ask({"ask": "world", "world": world, "data": data})

    def run(self, world: str, seed: int) -> RunOutcome:
        """Run the function once on a world's data, in a fresh process."""
        request = {"ask": "run", "world": world, "seed": seed, "timeout": self.timeout}
        found = self._ready({**request, "function": self.function, "own": self._own})
        late = [name for name in found.get("imported", []) if name not in self.libraries]
        if late and not self.whole:
            self.libraries = [*self.libraries, *late]
            self._ask({"ask": "libraries", "libraries": late})
        numbers = found.get("numbers")
        return RunOutcome(
            kind=found["kind"],
            shape=found.get("shape", found.get("error", "")),
            numbers=np.zeros(0) if numbers is None else numbers,
            why=cleaned(found.get("why", ""), 300),
            said=found.get("said", ""),
            seconds=found.get("seconds", 0.0),
        )

    def _ready(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to a process that has made no run, or to a copy of one, and return the answer."""
        if self.whole:
            self._stop()
        if self._process is None:
            self._start()
        return self._ask(request)

    def _start(self) -> None:
        if not hasattr(os, "fork"):
            raise NoVerdict("runs need a system that copies processes, as Linux and macOS do")
        environment = {**os.environ, **ONE_THREAD, "MPLBACKEND": "Agg"}
        self._process = subprocess.Popen(
            [sys.executable, zygote.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        opened = self._ask(
            {
                "ask": "open",
                "path": str(self.file),
                "folder": self._folder.name,
                "libraries": self.libraries,
            }
        )
        if opened["kind"] != "ok":
            raise NoVerdict(f"{self.file.name} cannot be read: {cleaned(opened['why'], 300)}")
        for world, data in self._worlds.items():
            self._ask({"ask": "world", "world": world, "data": data})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        found = zygote.ask(self._process, request)
        if found is None:
            self._process = None
            raise NoVerdict(f"{self.file.name}: the process that its runs are copied from ended")
        return found

    def _stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class SameProcess:
    """Run a function in this process: fast, and correct only for a function that keeps no state.

    Parameters
    ----------
    function : callable
        Function ``(data sets, seed)``.
    """

    isolation = "this process, as the function keeps no state"

    def __init__(self, function: Callable[[Any, int], Any]) -> None:
        self.function = function
        self._held: dict[str, list[NDArray[np.float64]]] = {}

    def hold(self, world: str, data: Any) -> None:
        """Keep a world's data for its runs."""
        self._held[world] = data

    def run(self, world: str, seed: int) -> RunOutcome:
        """Run the function once on a copy of a world's data."""
        with np.errstate(all="ignore"):
            answer = self.function([rows.copy() for rows in self._held[world]], seed)
        shape, numbers = zygote.flat(answer)
        return RunOutcome("ok", shape, numbers, "", "", 0.0)


def libraries_of(file: Path) -> list[str]:
    """List the installed modules that a file imports; modules from its own folder are left out."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise FieldError(
            "SUBJECT", file.name, f"is no Python that can be read ({error})"
        ) from error
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    beside = {path.stem for path in file.parent.glob("*.py")} | {
        path.name for path in file.parent.iterdir()
    }
    outside = {name for name in found if name.partition(".")[0] not in beside}
    return sorted(
        {"numpy", "numpy.random", *(name for name in outside if _installed(name.partition(".")[0]))}
    )


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
