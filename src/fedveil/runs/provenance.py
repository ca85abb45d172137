"""What made a figure: the arithmetic and the versions in every summary, and what stands beside a committed result."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedveil

# Raised by any change of a default or of arithmetic on that path: runs of two versions are not the same run.
NUMERICS = {"sequential": 7, "stacked": 3, "record": 8, "person": 9, "noise": 3}
_COMMON = 3  # a run whose paths all have this number says it alone


def provenance(data: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Command, commit, date, seeds, data, versions and kind of machine of this process.

    Parameters
    ----------
    data : str
        What it ran on.
    seeds : sequence of int
        Of its runs.
    """
    # without the folders of this machine
    command = " ".join(["fedveil", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:])])
    return {
        "command": command,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seeds": list(seeds),
        "data": data,
        "versions": {name: text.split("+")[0] for name, text in versions().items()},
        "machine": f"{platform.machine()}, CPU",
    }


def commit() -> str:
    """Commit of the checkout that is imported, "with changes" if its source has some; else the version."""
    root = Path(fedveil.__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return f"release {fedveil.__version__}"


def numerics_of(record: bool, trainer: str = "auto", *, person: bool = False) -> int | str:
    """The numbers of the paths that a run takes, out of `NUMERICS`.

    Parameters
    ----------
    record : bool
        Whether the noise goes inside training.
    trainer : {"auto", "batched", "sequential"}
        How it trains otherwise; what ``"auto"`` chooses is left open.
    person : bool
        Whether persons are clipped there, with all their records.
    """
    trained = {"auto": ("sequential", "stacked"), "batched": ("stacked",), "sequential": ("sequential",)}
    inside = ("person",) if person else ("record",)
    paths = (*(inside if record else trained[trainer]), "noise")
    raised = [f"{path} {NUMERICS[path]}" for path in paths if NUMERICS[path] != _COMMON]
    return ", ".join(raised) or _COMMON


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "fedveil": fedveil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
