"""Count how the code reads: its size and density, the files of one round, and the stays of one configuration.

Run ``python -m benchmarks.house`` in a checkout; ``--beside flwr opacus`` counts installed packages the same way.

Sizes leave out blank lines, comments and docstrings. A *nested expression* is a comprehension, a conditional
expression, a lambda or a walrus. A *walk* counts the functions of FedVeil in the order of their first call;
a *stay* is an unbroken series of them in one file.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import itertools
import os
import sys
import tempfile
import tokenize
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.records import ROOT

_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_NESTED = (
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.IfExp,
    ast.Lambda,
    ast.NamedExpr,
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

CONFIGURATION = """name = "walk"
rounds = 2
[data]
name = "breast-cancer"
clients = 3
[model]
name = "logistic"
[privacy]
method = "global"
noise_multiplier = 1.0
clip = 1.0
"""


@dataclass(frozen=True)
class Size:
    """Size of some Python files."""

    files: int
    lines: int
    tokens: int
    nested: int
    comments: int

    def __add__(self, other: Size) -> Size:
        return Size(
            self.files + other.files,
            self.lines + other.lines,
            self.tokens + other.tokens,
            self.nested + other.nested,
            self.comments + other.comments,
        )

    def row(self, name: str) -> str:
        """Return a row of the Markdown table."""
        density = f"{self.tokens / self.lines:.1f} | {100 * self.nested / self.lines:.1f}"
        return f"| {name} | {self.lines:,} | {self.files} | {self.tokens:,} | {density} | {self.comments:,} |"


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def size_of(path: Path) -> Size:
    """Count one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    documented = docstring_lines(tree)
    lines: set[int] = set()
    tokens = comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += token.line.lstrip().startswith("#")
        elif token.type not in _LAYOUT and not (
            token.type == tokenize.STRING and token.start[0] in documented
        ):
            tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    nested = sum(isinstance(node, _NESTED) for node in ast.walk(tree))
    return Size(1, len(lines), tokens, nested, comments)


def sizes(folder: Path) -> Size:
    """Count all Python files below a folder, without code that protoc made."""
    total = Size(0, 0, 0, 0, 0)
    for path in sorted(folder.rglob("*.py")):
        if "proto" not in path.parts:
            total += size_of(path)
    return total


def walk(action: Callable[[], Any], packages: tuple[Path, ...]) -> list[Path]:
    """Return the file of each function of the packages that `action` calls, in the order of first calls."""
    seen: dict[CodeType, Path] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen or code.co_name == "<module>":
            return
        path = Path(code.co_filename)
        if any(path.is_relative_to(package) for package in packages):
            seen[code] = path

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return list(seen.values())


def one_round() -> None:
    """Train one round of FedAvg with global DP in the embedded engine."""
    import torch
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import scale

    import fedveil as fv

    x, y = load_breast_cancer(return_X_y=True)
    x = scale(x)
    clients = [(x[i:400:5], y[i:400:5], x[400 + i :: 5], y[400 + i :: 5]) for i in range(5)]
    model = torch.nn.Sequential(torch.nn.Linear(30, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    privacy = fv.GlobalDP(fv.FedAvg(), noise_multiplier=1.0, clip=0.2)
    fv.Federation(model=model, clients=clients, method=privacy, seed=1).run(rounds=1)


def one_configuration() -> None:
    """Run `fedveil run` on a small configuration, in a folder that is gone afterwards."""
    from fedveil.cli import main

    before, arguments = Path.cwd(), sys.argv
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("walk.toml").write_text(CONFIGURATION)
        sys.argv = ["fedveil", "run", "walk.toml", "--out", "out"]
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            os.chdir(before)
            sys.argv = arguments


def describe(name: str, files: list[Path]) -> str:
    """Return a row of the table of walks."""
    stays = 1 + sum(here != there for here, there in itertools.pairwise(files))
    opened = set(files)
    lines = sum(size_of(path).lines for path in opened)
    return f"| {name} | {len(files)} | {stays} | {len(opened)} | {lines:,} |"


def main() -> None:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument(
        "--beside",
        nargs="*",
        default=[],
        metavar="PACKAGE",
        help="installed packages to count, too",
    )
    arguments = parser.parse_args()
    ours = tuple(
        sorted(
            path.parent
            for path in ROOT.glob("**/src/fedveil*/__init__.py")
            if ".venv" not in str(path)
        )
    )
    print(
        "| package | lines | files | tokens | tokens a line | nested per 100 lines | lines of comments |"
    )
    print("|---|---|---|---|---|---|---|")
    for package in ours:
        print(sizes(package).row(package.name))
    for name in arguments.beside:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            parser.error(f"the package {name!r} is not installed")
        print(sizes(Path(found.origin).parent).row(name))
    print("\n| walk | functions | stays | files | lines of these files |\n|---|---|---|---|---|")
    warnings.simplefilter("ignore")
    one_round()  # what is imported or cached at the first call is no part of a round
    print(describe("a round of FedAvg with global DP", walk(one_round, ours)))
    print(describe("fedveil run", walk(one_configuration, ours)))


if __name__ == "__main__":
    main()
