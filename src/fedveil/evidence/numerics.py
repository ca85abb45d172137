"""Version numbers of the arithmetic behind a figure, one for each path of training, and versions of packages."""

import platform
from functools import cache
from pathlib import Path

import numpy as np
import torch

import fedveil

# A change of a default or of arithmetic raises the number of its path: runs with two numbers have other bits.
NUMERICS = {"sequential": 8, "stacked": 3, "record": 14, "person": 15, "noise": 3, "grid": 4}
_COMMON = 3  # written alone by a run if all its paths have it


def numerics_of(
    record: bool, trainer: str = "auto", *, person: bool = False, grid: bool = False
) -> int | str:
    """Return the version numbers in `NUMERICS` for the training paths that a run uses.

    Parameters
    ----------
    record : bool
        Whether the noise goes inside training.
    trainer : {"auto", "batched", "sequential"}
        Trainer of a run without noise inside training; ``"auto"`` may take either.
    person : bool
        Whether gradients of persons are clipped instead of records'.
    grid : bool
        Whether noise is drawn on an integer grid, as in a secure sum.
    """
    trained = {
        "auto": ("sequential", "stacked"),
        "batched": ("stacked",),
        "sequential": ("sequential",),
    }
    paths = trained[trainer]
    if record:
        paths = ("person",) if person else ("record",)
    paths = (*paths, "grid" if grid else "noise")
    raised = [f"{path} {NUMERICS[path]}" for path in paths if NUMERICS[path] != _COMMON]
    return ", ".join(raised) or _COMMON


def versions() -> dict[str, str]:
    """Return the versions of FedVeil, PyTorch, NumPy and Python."""
    return {
        "fedveil": fedveil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, str | int]:
    """Describe this kind of machine, on which the last bits of a run depend, without identifying it."""
    return {
        "processor": _processor(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


@cache
def _processor() -> str:
    """Return the processor's model (Linux), or its architecture (other systems)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return f"{platform.machine()}, {value.strip()}"
    return platform.machine()
