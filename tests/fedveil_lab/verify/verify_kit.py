"""The examples' cases, and runs of them without a process each, as these mechanisms keep no state."""

import importlib.util
from pathlib import Path

from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.isolation import SameProcess
from fedveil_lab.verify.playing import play
from fedveil_lab.verify.worlds import Sizes, library

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "verify"


def module(name):
    """One of the examples' files."""
    spec = importlib.util.spec_from_file_location(f"verify_{name}", EXAMPLES / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def worlds_of(case):
    """Claim and worlds of a case."""
    claim = PrivacyClaim.parse(case["claim"])
    sizes = {name: case[name] for name in ("clients", "examples", "columns") if name in case}
    return claim, library(claim, Sizes(**sizes))


def judged(file, name, runs, seed, alpha=0.01):
    """The verdict on one case, in this process."""
    loaded = module(file)
    claim, worlds = worlds_of(loaded.CASES[name])
    return play(
        SameProcess(getattr(loaded, name)), worlds, claim, Effort(runs=runs, seed=seed, alpha=alpha)
    )
