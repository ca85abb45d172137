"""The library in a process of its own in which the laboratory, and what only it needs, cannot be imported."""

import subprocess
import sys

ABSENT = (
    "fedveil_lab",
    "fedveil_studies",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "jinja2",
    "tomli_w",
)
HEAVY = tuple(
    name for name in ABSENT if name != "fedveil_studies"
)  # whose methods join where they are installed
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from importlib import metadata, util
metadata.entry_points = lambda **_: metadata.EntryPoints(())
found = util.find_spec
util.find_spec = lambda name, package=None: None if name.partition(".")[0] in {absent!r} else found(name, package)
"""


def alone(program, folder, absent=ABSENT):
    """Run a program without them; its standard output."""
    text = BLOCK.format(absent=set(absent)) + program
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def loaded(program, folder):
    """Modules of those that a program loads, where all are there."""
    text = f"{program}\nimport sys\nprint(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]
