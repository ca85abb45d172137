"""Memory of a process and of a tree of processes, from Linux's /proc."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
_MEGABYTE = 1024  # /proc counts in kB


def present() -> float:
    """Resident megabytes of this process."""
    return _status("VmRSS")


def peak() -> float:
    """The most resident megabytes this process has had (since it was started, unlike ``ru_maxrss``)."""
    return _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / _MEGABYTE


def watched(
    arguments: Sequence[str], environment: dict[str, str], pause: float = 0.1
) -> dict[str, Any]:
    """Run ``python -m benchmarks.alone`` and sample the memory of its process tree.

    Returns
    -------
    dict
        What it printed last, read as JSON, with ``tree_pss_mb`` (pages that several processes share are counted once),
        ``tree_rss_mb`` (counted in each) and ``processes``, at the moment of the largest PSS.

    Raises
    ------
    RuntimeError
        If it failed.
    """
    command = [sys.executable, "-m", "benchmarks.alone", *arguments]
    most = (0, 0, 0)
    with (
        TemporaryFile("w+") as out,
        TemporaryFile("w+") as error,
    ):  # a pipe that nobody empties would stop the child
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=error, text=True
        )
        while child.poll() is None:
            found = [_process(pid) for pid in _tree(child.pid)]
            most = max(
                most, (sum(pss for pss, _ in found), sum(rss for _, rss in found), len(found))
            )
            time.sleep(pause)
        said, problem = _text(out), _text(error)
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {problem[-2000:]}")
    sizes = {
        "tree_pss_mb": most[0] / _MEGABYTE,
        "tree_rss_mb": most[1] / _MEGABYTE,
        "processes": most[2],
    }
    return {**json.loads(said.strip().splitlines()[-1]), **sizes}


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _tree(pid: int) -> list[int]:
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _tree(int(child))
    except OSError:  # it has ended meanwhile
        pass
    return found


def _process(pid: int) -> tuple[int, int]:
    """PSS and RSS in kB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {
        line.split(":")[0]: int(line.split()[1])
        for line in lines
        if line.startswith(("Pss:", "Rss:"))
    }
    return sizes.get("Pss", 0), sizes.get("Rss", 0)
