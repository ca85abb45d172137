"""What docs/architecture.md says of the rooms, read from the source alone."""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import fedveil

ROOT = Path(fedveil.__file__).parent
FACADE = "fedveil"  # loads what it offers when it is asked for
TREES = {
    ".".join(("fedveil", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): ast.parse(
        path.read_text(encoding="utf-8")
    )
    for path in ROOT.rglob("*.py")
}


def imported(tree):
    """Modules of FedVeil that a module imports, also inside functions and for types."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in TREES else node.module for name in names}
    return found & TREES.keys()


def test_no_module_imports_itself_on_a_detour():
    graph = {name: imported(tree) - {name, FACADE} for name, tree in TREES.items() if name != FACADE}
    TopologicalSorter(graph).prepare()


def test_rooms_up_to_methods_know_no_engine_file_or_picture():
    core = ("clipping", "gdp", "layout", "mechanisms", "accounting", "secure", "calibration", "aggregation", "methods")
    above = {"engines", "config", "runs", "grid", "audit", "report", "papers", "cli", "data", "attacks"}
    for name, tree in TREES.items():
        if name.split(".")[1:2] and name.split(".")[1] in core:
            assert not {module.split(".")[1] for module in imported(tree) if "." in module} & above, name


def test_a_public_class_has_a_name_of_its_own():
    classes = (node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    twice = {name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")}
    assert not twice


def test_nobody_above_the_methods_looks_into_one():
    for name, tree in TREES.items():
        if name.split(".")[1:2] == ["methods"]:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                looked_into = ast.unparse(node.args[0]).split(".")[-1]
                assert looked_into not in {"server", "client", "method", "side"}, f"{name}, line {node.lineno}"


def test_no_file_of_the_package_is_hidden_from_the_linter():
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=ROOT.parents[1], capture_output=True, text=True, check=True).stdout
    assert {str(path) for path in ROOT.rglob("*.py")} <= set(shown.splitlines())
