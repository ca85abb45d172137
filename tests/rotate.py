"""Run one slice of the long checks, another with each commit, so that none is left out for long: `make rotate`.

Which one is the number of commits modulo the number of slices in turn (`TURNS`); of a clone without its history, the
commit's own name modulo it. `make rotate SLICE=crash-2` runs any of them by name, `make rotate SLICE=list` lists them.

A slice is red if one of its steps is. What a machine lacks is left out, with a word: a browser, the data, an index of
packages for an environment of its own. A test that would begin after 20 minutes is left out too, with a word; on a busy
machine `make rotate SLICE=crash-2 MINUTES=120` gives it more.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINUTES = 20
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ELSEWHERE = (
    "mutation",
    "crash",
    "hostile",
    "fresh",
    "fuzz",
    "endurance",
)  # folders whose slow tests have slices of their own


def browser() -> str:
    """What is missing for a browser, or ""."""
    return "" if any(map(shutil.which, BROWSERS)) else f"none of {', '.join(BROWSERS)} is here"


def offered(package: str, line: str = "") -> Callable[[], str]:
    """What looks for a package, of a line of versions, in the index: what is missing, or ""."""

    def missing() -> str:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "index",
            "versions",
            package,
        ]
        try:
            done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=120)
        except subprocess.TimeoutExpired:
            return "no index of packages answers"
        found = re.search(r"^Available versions: (.*)", done.stdout, re.MULTILINE)
        known = found[1].split(", ") if found and done.returncode == 0 else []
        if any(version.startswith(line) for version in known):
            return ""
        return f"no index that is reached offers {package} {line}".strip()

    return missing


def nothing() -> str:
    return ""


@dataclass(frozen=True)
class Step:
    """A target of the Makefile, the pytest arguments it is given, and what says why it cannot run here."""

    target: str
    arguments: str = ""
    lacks: Callable[[], str] = nothing


def parts(target: str, count: int, arguments: str = "") -> dict[str, tuple[Step, ...]]:
    """A target's tests in some slices of about the same size."""
    return {
        f"{target}-{number}": (Step(target, f"{arguments} --part {number}/{count}".strip()),)
        for number in range(1, count + 1)
    }


SLICES: dict[str, tuple[Step, ...]] = {
    **parts("mutation", 3),
    **parts("hostile", 4, "-n 2"),
    **parts("crash", 3, "-n 2"),
    **parts("slow", 4, " ".join(f"--ignore=tests/{folder}" for folder in ELSEWHERE)),
    **parts("fresh", 2),
    **parts("fuzz", 2),
    **parts("endurance", 3),
    **parts("deploy-test", 2),
    "pages": (
        Step("browser", lacks=browser),
        Step("notebooks", lacks=offered("nbclient")),
        Step("docs", lacks=offered("mkdocs-material")),
    ),
    "wheels": (Step("wheels", lacks=offered("hatchling")),),
    "flare-2.7": (Step("flare-2.7", lacks=offered("nvflare", "2.7.")),),
    "flare-2.8": (Step("flare-2.8", lacks=offered("nvflare", "2.8.")),),
    "newest": (Step("newest", lacks=offered("torch")),),
}


# Seen green as a whole (CONTRIBUTING.md): these are taken in turn. The others run by name alone, until they
# were seen green, too.
TURNS = (
    "deploy-test-1",
    "pages",
    "flare-2.7",
    "hostile-1",
    "wheels",
    "hostile-2",
    "hostile-3",
    "hostile-4",
    "fuzz-1",
    "fuzz-2",
)


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def turn() -> tuple[int, str]:
    """A number that is another one with each commit, and where it is from."""
    try:
        if git("rev-parse", "--is-shallow-repository") == "true":
            commit = git("rev-parse", "HEAD")
            return int(commit, 16), f"commit {commit[:12]} of a shallow clone"
        count = int(git("rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        day = int(time.time() // 86_400)
        return day, f"day {day}, without a repository"
    return count, f"{count} commits"


def chosen(asked: str) -> tuple[str, str]:
    """The slice to run, and why this one."""
    if asked in SLICES:
        return asked, "as asked"
    if asked:
        raise SystemExit(f"rotate: there is no slice {asked!r}; there are: {', '.join(SLICES)}")
    number, source = turn()
    return TURNS[number % len(TURNS)], f"{source}, modulo {len(TURNS)} slices"


def run(step: Step, until: float) -> str:
    """How a step went: "green", "red", or why it was left out."""
    if missing := step.lacks():
        return f"left out: {missing}"
    arguments = f"PYTEST_ARGS={step.arguments} --until {until:.0f}"
    done = subprocess.run(
        ["make", "--no-print-directory", step.target, arguments], cwd=ROOT, check=False
    )
    return "red" if done.returncode else "green"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("slice", nargs="?", default="", help="a slice's name; or list")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="after which no test begins")
    given = parser.parse_args()
    if given.slice == "list":
        for name in SLICES:
            print(name if name in TURNS else f"{name} (by name alone)")
        return 0
    name, why = chosen(given.slice)
    print(f"rotate: slice {name} ({why})", flush=True)
    started = time.time()
    found = {step: run(step, started + 60 * given.minutes) for step in SLICES[name]}
    for step, ended in found.items():
        print(f"rotate: {step.target}: {ended}")
    print(f"rotate: slice {name}: {(time.time() - started) / 60:.1f} minutes")
    return int("red" in found.values())


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
