"""The results on disk: one JSON file a measurement, each saying what made it, in a folder an instruction set."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "results" / "bench"


def instruction_set() -> str:
    """Of PyTorch's kernels on this machine: avx512, avx2, ..."""
    return torch.backends.cpu.get_cpu_capability().lower()


FOLDER = BENCH / instruction_set()


def write(
    name: str, body: dict[str, Any], *, data: str, device: str = "cpu", folder: Path = FOLDER
) -> Path:
    """Write a measurement's JSON; results of another device than the CPU have its name in theirs.

    Parameters
    ----------
    name : str
        Of the measurement.
    body : dict
        The figures.
    data : str
        Where the data came from.
    """
    from fedveil_lab.runs.provenance import provenance  # what runs elsewhere needs no library

    made = provenance(data, [0]) if shutil.which("git") else {"date": "no git here", "data": data}
    made["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
    made["machine"] = machine(device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(name, device)}.json"
    path.write_text(json.dumps({"provenance": made, **body}, indent=1) + "\n")
    return path


def read(name: str, device: str = "cpu", folder: Path = FOLDER) -> dict[str, Any] | None:
    """A measurement's JSON, or None where it has not been made."""
    path = folder / f"{name_of(name, device)}.json"
    return json.loads(path.read_text()) if path.exists() else None


def name_of(name: str, device: str) -> str:
    """The file's name without its ending."""
    return name if device == "cpu" else f"{name}-{device}"


def machine(device: str) -> str:
    """Kind of processor and number of cores; or the accelerator's name."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        "unknown processor",
    )
    wide = [name for name in ("avx512f", "amx_tile") if any(name in line.split() for line in lines)]
    return f"{model}, {os.cpu_count()} cores" + "".join(f", {name}" for name in wide)
