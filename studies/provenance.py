"""What made a figure: written beside every committed result."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedveil


def provenance(data: str, seeds: list[int]) -> dict[str, Any]:
    """Command, commit, versions and machine kind of this run."""
    root = Path(__file__).resolve().parent.parent
    given = [_anywhere(argument) for argument in sys.argv[1:]]
    git = lambda *args: subprocess.run(["git", *args], cwd=root, capture_output=True, text=True).stdout.strip()  # noqa: E731
    return {
        "command": " ".join(["python", str(Path(sys.argv[0]).resolve().relative_to(root)), *given]),
        "commit": git("rev-parse", "HEAD")
        + (" with changes" if git("status", "--porcelain", "src", "studies") else ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seeds": seeds,
        "data": data,
        "versions": {
            "fedveil": fedveil.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__.split("+")[0],
            "numpy": np.__version__,
        },
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread(s), CPU",
    }


def _anywhere(argument: str) -> str:
    """An argument without the folders of this machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument
