"""What ARCHITECTURE.md says of the rooms, read from the source alone."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedveil
import fedveil_lab
import fedveil_studies

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
FACADE = "fedveil"  # loads what it offers when it is asked for
LATE = "_OFFERED"  # the table of a package that loads names when they are used
UPWARDS: set[tuple[str, str]] = set()  # imports of a later room: none


@cache
def trees():
    """The syntax tree of every module of the packages, by its name."""
    found = {}
    for package in (fedveil, fedveil_lab, fedveil_studies):
        root = Path(package.__path__[0])
        for path in root.rglob("*.py"):
            parts = (package.__name__, *path.relative_to(root).with_suffix("").parts)
            name = ".".join(parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree):
    """Modules of all packages that a module imports, also inside functions and for types."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in trees() else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & trees().keys()


def rooms(heading):
    """The rooms of the table below a heading, in its order."""
    table = re.split(r"\n##+ ", PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2])[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)(?:\.py|/)`", row)]


def test_no_module_imports_itself_on_a_detour():
    graph = {
        name: imported(tree) - {name, FACADE} for name, tree in trees().items() if name != FACADE
    }
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("package", "heading"),
    [
        ("fedveil", "## The rooms"),
        ("fedveil_lab", "### The laboratory"),
        ("fedveil_studies", "### The studies beside it"),
    ],
)
def test_a_room_imports_only_rooms_that_stand_before_it(package, heading):
    order = rooms(heading)
    own = {name: name.split(".")[1] for name in trees() if name.startswith(f"{package}.")} | {
        package: ""
    }
    assert {*own.values()} - {"", "__main__"} == {*order}
    upwards = set()
    for name in own.keys() - {package}:
        for module in imported(trees()[name]) & own.keys() - {package}:
            room, other = own[name], own[module]
            if room in order and (other not in order or order.index(other) > order.index(room)):
                upwards.add((name, module))
    assert upwards == {(name, module) for name, module in UPWARDS if name in own}


def taken(tree):
    """Packages that a module imports, also inside functions and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


OF_THE_LABORATORY = {
    "fedveil_lab",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "jinja2",
    "tomli_w",
    "threadpoolctl",
}


def test_the_library_imports_neither_the_laboratory_nor_a_study_nor_what_only_these_need():
    library = {name: tree for name, tree in trees().items() if name.split(".")[0] == "fedveil"}
    facade = library.pop(FACADE)
    assert len(library) > 100
    above = {"fedveil_studies", *OF_THE_LABORATORY}
    assert {
        name: found for name, tree in library.items() if (found := above & {*taken(tree)})
    } == {}
    [block] = [
        one
        for one in facade.body
        if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
    ]
    offered = {*block.body}  # for type checkers: `lazy` imports them when they are asked for
    rest = ast.Module([one for one in facade.body if one is not block], [])
    assert above & {*taken(rest)} == set()
    assert above & {top for one in offered for top in taken(one)} == {"fedveil_lab"}


def names_offered_late():
    """Of each package that imports its names when they are used: its table's, and those of its block for types."""
    for name, tree in trees().items():
        tables = [
            one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == LATE
        ]
        if not tables:
            continue
        [block] = [
            one
            for one in tree.body
            if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
        ]
        table = {
            (module, one)
            for module, names in ast.literal_eval(tables[0]).items()
            for one in names.split()
        }
        typed = {
            (line.module, one.name)
            for line in block.body
            for one in line.names
            if one.name == one.asname
        }
        yield name, table, typed


def test_what_is_imported_when_it_is_used_is_what_type_checkers_see():
    late = list(names_offered_late())
    assert len(late) == 6
    for name, table, typed in late:
        assert table == typed, name


def test_no_package_offers_a_name_that_is_another_of_its_modules():
    for name, table, _ in names_offered_late():
        modules = {one for module, one in table if module != name and f"{name}.{one}" in trees()}
        assert not modules, name


def test_the_laboratory_imports_no_study():
    laboratory = {
        name: tree for name, tree in trees().items() if name.split(".")[0] == "fedveil_lab"
    }
    assert len(laboratory) > 50
    assert not {name for name, tree in laboratory.items() if "fedveil_studies" in {*taken(tree)}}


def test_the_frame_of_studies_knows_no_study():
    frame = {
        name: imported(tree)
        for name, tree in trees().items()
        if name.startswith("fedveil_studies.frame")
    }
    assert len(frame) > 10
    beyond = {
        module
        for found in frame.values()
        for module in found
        if module.startswith("fedveil_studies")
    }
    assert {module.split(".")[1] for module in beyond} == {"frame"}


def test_rooms_up_to_methods_know_no_engine_file_or_picture():
    order = rooms("## The rooms")
    core, above = order[: order.index("methods") + 1], order[order.index("learning") :]
    assert {"clipping", "mechanisms", "accounting", "calibration", "aggregation"} <= {*core}
    for name, tree in trees().items():
        if name.split(".")[0] == "fedveil" and name.split(".")[1:2] and name.split(".")[1] in core:
            assert not {module.split(".")[1] for module in imported(tree) if "." in module} & {
                *above
            }, name


def test_a_public_class_has_a_name_of_its_own():
    classes = (
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    twice = {
        name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")
    }
    assert not twice


def test_nobody_above_the_methods_looks_into_one():
    for name, tree in trees().items():
        if name.split(".")[1:2] == ["methods"]:
            continue
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "getattr"
            ):
                looked_into = ast.unparse(node.args[0]).split(".")[-1]
                assert looked_into not in {"server", "client", "method", "side"}, (
                    f"{name}, line {node.lineno}"
                )


# what the laboratory and the studies take from inside a room of the library: readers of data, what is sealed on disk
INSIDE = {
    "cli",
    "data",
    "engines.sealed",
    "engines.states",
    "evidence.carried",
    "learning.classified",
}


def test_other_packages_take_what_the_librarys_rooms_export():
    found = set()
    for name, tree in trees().items():
        if name.split(".")[0] != "fedveil":
            inner = {
                module
                for module in imported(tree)
                if module.startswith("fedveil.") and module.count(".") > 1
            }
            found |= {(name, module) for module in inner}
    taken_inside = {
        (name, module) for name, module in found if module.removeprefix("fedveil.") not in INSIDE
    }
    assert {
        (name, module) for name, module in taken_inside if module.split(".")[1] not in INSIDE
    } == set()


def test_a_module_that_tests_share_has_a_name_of_its_own():
    """Their folders stand side by side on the path: of two with one name, all tests would get the first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = [ROOT / name for name in project["tool"]["pytest"]["ini_options"]["pythonpath"]]
    names = Counter(
        path.stem for folder in folders for path in folder.glob("*.py") if path.stem != "conftest"
    )
    assert names["hostile_kit"]
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "ROUNDS.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    roots = [ROOT, *(ROOT / own for own in ("src", "lab/src", "studies/src", "tests"))]
    ours = {
        path.as_posix()
        for root in roots[1:]
        for kind in ("*.py", "*.toml")
        for path in root.rglob(kind)
    }
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|toml))`", page)
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page)
    known = [file for file in named if not (ROOT / file).exists()]
    assert len(linked) > 2
    assert not [file for file in known if not any(own.endswith(f"/{file}") for own in ours)]
    assert not [target for target in linked if not (ROOT / target).exists()]
