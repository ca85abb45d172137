"""Every case of these examples through `fedveil verify`: claimed, proven, measured, and what caught it.

``python examples/verify/table.py FOLDER [RUNS [FILE ...]]`` writes verdicts.csv, .md and .json there.
"""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from fedveil.gdp import rounded_down, rounded_up
from fedveil.tables import NOTHING, Table
from fedveil_lab.runs.provenance import provenance
from fedveil_lab.verify import Judged, MechanismSteps, PrivacyClaim, prove
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.isolation import SameProcess
from fedveil_lab.verify.judged import described_alone
from fedveil_lab.verify.playing import play
from fedveil_lab.verify.worlds import Sizes, library

HERE = Path(__file__).resolve().parent
SEED = 0


def judged_case(module: str, name: str, runs: int) -> Judged:
    """The verdict on one case; one without a function is composed alone."""
    loaded = import_module(module)
    case = loaded.CASES[name]
    if case["claim"] is None:
        like = PrivacyClaim.parse(f"eps=0 delta=1e-5 {case['unit']}")
        found = prove(MechanismSteps.parse(case["steps"]), like)
        return Judged(subject=name, proven=found, notes=("it prints no epsilon",))
    claim = PrivacyClaim.parse(case["claim"])
    steps = MechanismSteps.parse(case["steps"]) if "steps" in case else None
    if not hasattr(loaded, name):
        return described_alone(name, claim, steps)
    sizes = Sizes(**{key: case[key] for key in ("clients", "examples", "columns") if key in case})
    effort = Effort(runs=case.get("runs", runs), seed=SEED)
    # none of these functions keeps a state: a process for each run gives the same verdicts, and takes an hour
    found = play(SameProcess(getattr(loaded, name)), library(claim, sizes), claim, effort)
    if steps is None:
        return replace(found, subject=name)
    caught = (*found.caught, *described_alone(name, claim, steps).caught)
    return replace(found, subject=name, proven=prove(steps, claim), caught=caught)


def row_of(module: str, judged: Judged) -> dict[str, str]:
    """A row of the table."""
    proven = "nothing" if judged.proven is not None and judged.proven.epsilon is None else NOTHING
    if judged.proven is not None and judged.proven.epsilon is not None:
        proven = rounded_up(judged.proven.epsilon)
    row = {
        "file": module,
        "mechanism": judged.subject,
        "claimed": NOTHING if judged.claim is None else judged.claim.describe(),
        "proven epsilon": proven,
    }
    for figure in ("epsilon", "mu"):
        best = None if judged.measured is None else judged.measured.best(figure)
        row[f"measured {figure}, at least"] = NOTHING if best is None else rounded_down(best.value)
        row[f"ceiling of {figure}"] = NOTHING if best is None else rounded_down(best.ceiling)
    row["world"] = judged.world.partition(":")[0] or NOTHING
    row["caught by"] = ", ".join(sorted({one.by for one in judged.caught})) or NOTHING
    row["refuted"] = "yes" if judged.refuted else "no"
    return row


def main(folder: Path, runs: int, modules: list[str]) -> None:
    """Judge all cases of these files, and write the table."""
    sys.path.insert(0, str(HERE))
    rows, kept = [], []
    for module in modules:
        for name in import_module(module).CASES:
            judged = judged_case(module, name, runs)
            rows.append(row_of(module, judged))
            kept.append({"file": module, **judged.to_dict()})
            print(name, judged.answer, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdicts.csv").write_text(Table.of(rows).csv())
    (folder / "verdicts.md").write_text("\n".join(Table.of(rows).markdown()).strip() + "\n")
    made = provenance("none: worlds of the library", [SEED])
    made["command"] = " ".join(
        ["python examples/verify/table.py", str(folder), str(runs), *modules]
    )
    record = {"provenance": made, "runs": runs, "verdicts": kept}
    (folder / "verdicts.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    main(Path(sys.argv[1]), runs, sys.argv[3:] or ["public", "wrong", "right"])
