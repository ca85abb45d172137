"""The gate of a comparison on the command line: declared beforehand, and afterwards printed and turned into an exit code."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil_lab.cli.shared import fail, show

if TYPE_CHECKING:
    from fedveil_lab.config import Config
    from fedveil_lab.grid.gate import Gate, Passed

SHUT = 6


def gate_of(file: Path | None, config: "Config", folder: Path) -> "Gate | None":
    """Read the requested gate; a folder that has one does not continue without it."""
    from fedveil.errors import FieldError
    from fedveil_lab.grid.gate import GATE, Gate

    if file is not None:
        return Gate.read(file, config)
    if (folder / GATE).exists():
        accepted = "holds a comparison that was begun with a gate: give the same file again"
        raise FieldError("--gate", str(folder), accepted)
    return None


def through(passed: "Passed", folder: Path) -> None:
    """Write and print the gate's result; exit with code 6 if a setting failed."""
    from fedveil.tables import Table

    passed.keep(folder)
    parts = {"privacy": passed.privacy, "attack": passed.attack, "measures": passed.measures}
    asked = {
        "privacy": True,
        "attack": passed.gate.attack is not None,
        "measures": bool(passed.gate.measures),
    }
    rows = []
    for part, why in parts.items():
        verdict = "passes"
        if not asked[part]:
            verdict = "not asked for"
        elif why:
            verdict = "FAILS"
        rows.append((part, verdict, "; ".join(why)))
    show([Table(("gate", "verdict", "why"), rows, title=passed.verdict, wraps=("why",))])
    if not passed:
        fail(f"{folder}: {passed.verdict}", SHUT)
