"""Provenance of figures: numerics and versions for every summary, and the note for a committed result."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fedveil
import fedveil_lab
from fedveil.evidence import versions


def provenance(data: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Collect command, commit, date, seeds, data, versions and kind of machine of this process.

    Parameters
    ----------
    data : str
        Name of the data.
    seeds : sequence of int
        Seeds of the runs.
    """
    return {
        "command": _command(),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seeds": list(seeds),
        "data": data,
        "versions": {name: text.split("+")[0] for name, text in versions().items()},
        "machine": f"{platform.machine()}, CPU",
    }


def _command() -> str:
    """Return the command line without this machine's folders."""
    words = ["fedveil"]
    for argument in sys.argv[1:]:
        path = Path(argument)
        if path.is_absolute():
            argument = path.name
        words.append(argument)
    return " ".join(words)


def commit() -> str:
    """Return the commit of the imported source, with "with changes" if it was changed; without a checkout the version."""
    roots = [Path(package.__path__[0]).resolve() for package in (fedveil, fedveil_lab)]

    def git(root: Path, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        head = git(roots[0], "rev-parse", "HEAD")
        for root in roots:
            if git(root, "status", "--porcelain", "."):
                return f"{head} with changes"
        return head
    except (OSError, subprocess.CalledProcessError):
        return f"release {fedveil.__version__}"
