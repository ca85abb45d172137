"""Each module alone: nothing that it takes from another is there only because somebody else imported it before."""

import ast
import importlib.util
import os
from functools import cache

import pytest

from blocks_kit import PAGES, ROOT, blocks_of, fresh, python

PACKAGES = {
    path.parent.name: path.parent
    for start in ("src", "*/src")
    for path in ROOT.glob(f"{start}/*/__init__.py")
}
FILES = {
    ".".join((name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
    for name, root in PACKAGES.items()
    for path in root.rglob("*.py")
}
OTHERS = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]


@cache
def sources():
    """The syntax tree of every module of the packages, by its name."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def statements(tree):
    """What a module runs when it is imported, and the block for types, whose names a package offers lazily."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            waiting += [
                inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)
            ]


def bound(node):
    """Names that an import binds -> the module each stands for, or None for what is no module of ours."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield (
                (alias.asname or top),
                (alias.name if alias.asname else top) if top in PACKAGES else None,
            )
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield (alias.asname or alias.name), whole if whole in sources() else None


def offered(name):
    """Names that a module offers by itself -> the module each stands for, or None."""
    names = {
        "__version__": None,
        "__all__": None,
        "__file__": None,
        "__name__": None,
        "__doc__": None,
        "__path__": None,
    }
    for node in statements(sources()[name]):
        names |= dict(bound(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = None
        for target in (
            ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else ()
        ):
            if isinstance(target, ast.Name):
                names.setdefault(target.id, None)
    for node in statements(sources()[name]):  # importing a module below it sets the attribute, too
        of_it = [m for _, m in bound(node) if m is not None] + (
            [node.module] if isinstance(node, ast.ImportFrom) else []
        )
        for module in of_it:
            if (
                module
                and module.startswith(f"{name}.")
                and module in sources()
                and not lazily(name, node)
            ):
                names.setdefault(
                    module.removeprefix(f"{name}.").partition(".")[0],
                    f"{name}.{module[len(name) + 1 :].partition('.')[0]}",
                )
    return names


def lazily(name, node):
    """Whether an import stands in the block for types, so that nothing is imported."""
    blocks = [
        one
        for one in sources()[name].body
        if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
    ]
    return any(node in block.body for block in blocks)


@cache
def all_offered():
    """What each module offers by itself, by the module's name."""
    return {name: offered(name) for name in sources()}


def missing(tree):
    """Attributes of our modules in a source that no module offers by itself."""
    names = {
        name: module
        for node in ast.walk(tree)
        for name, module in bound(node)
        if module in sources()
    }
    wholes = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found = set()
    for node in ast.walk(tree):
        chain = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if not chain or not isinstance(node, ast.Name) or node.id not in names:
            continue
        module = names[node.id]
        for attribute in chain:
            inner = f"{module}.{attribute}"
            if any(whole == inner or whole.startswith(f"{inner}.") for whole in wholes):
                module = inner
                continue
            if attribute not in all_offered()[module]:
                found.add(inner)
                break
            module = all_offered()[module][attribute]
            if module not in sources():
                break
    return found


@pytest.mark.parametrize("place", ["src", "others", "pages"])
def test_each_attribute_of_a_module_is_one_that_it_offers_by_itself(place):
    if place == "src":
        trees = sources()
    elif place == "others":
        trees = {str(path): ast.parse(path.read_text(encoding="utf-8")) for path in OTHERS}
    else:
        blocks = [
            block for page in PAGES for block in blocks_of(page) if block.kind in ("python", "py")
        ]
        trees = {f"{block.page}: {block.first}": ast.parse(block.text) for block in blocks}
    assert {name: found for name, tree in trees.items() if (found := missing(tree))} == {}


def test_an_attribute_that_needs_another_import_is_found():
    assert missing(ast.parse("from fedveil_lab import config\nconfig.loading.text_of")) == {
        "fedveil_lab.config.loading"
    }
    assert (
        missing(
            ast.parse("import fedveil as fv\nfv.config.load\nfv.methods.build\nfv.GlobalDP.name")
        )
        == set()
    )
    assert (
        missing(ast.parse("import fedveil_lab.config.loading\nfedveil_lab.config.loading.text_of"))
        == set()
    )


def room_of(name):
    return ".".join(name.split(".")[:2])


# Each module in a child of a process that has loaded of other packages no more than everybody has who imports them: the
# package itself. A process of its own for each would load PyTorch three hundred times.
ALONE = """
import importlib, os, sys, traceback

for package in {loaded!r}:
    try:
        importlib.import_module(package)
    except ImportError:
        pass

def look_at(name):
    module = importlib.import_module(name)
    for attribute in getattr(module, "__all__", []):
        try:
            getattr(module, attribute)
        except ImportError as error:
            if not {optional!r} & set(str(error).replace("'", " ").split()):
                raise

failed = []
for name in {names!r}:
    assert not [other for other in sys.modules if other.partition(".")[0] in {ours!r}]
    child = os.fork()
    if not child:
        status = 1
        try:
            look_at(name)
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print("failed:", *failed)
"""
LOADED = (
    "numpy",
    "torch",
    "scipy",
    "sklearn",
    "pydantic",
    "typer",
    "rich",
    "cryptography",
    "pandas",
    "flwr",
)
OPTIONAL = {"flwr", "nvflare", "matplotlib", "ray", "wandb"}
NEEDS = {"nvflare": "nvflare", "flower": "flwr", "node": "flwr"}
ROOMS = sorted({room_of(name) for name in FILES})


def there(name):
    """Whether the optional package that a module needs is installed."""
    needed = [package for part, package in NEEDS.items() if part in name.split(".")]
    return all(importlib.util.find_spec(package) for package in needed)


def looked_at(names, folder):
    code = ALONE.format(names=names, loaded=LOADED, optional=OPTIONAL, ours=set(PACKAGES))
    done = fresh([*python(), "-W", "error::DeprecationWarning:fedveil", "-c", code], folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("room", ROOMS)
def test_each_module_is_imported_alone_and_has_what_it_offers(room, tmp_path):
    of_the_room = [name for name in FILES if room_of(name) == room]
    names = [name for name in of_the_room if not name.endswith("__main__") and there(name)]
    done = looked_at(names, tmp_path)
    assert done.stdout.split() == ["failed:"], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_module_that_is_not_whole_alone_is_found(tmp_path):
    (tmp_path / "half.py").write_text("import xml\nxml.dom.minidom\n")
    (tmp_path / "wanting.py").write_text("__all__ = ['nothing']\n")
    (tmp_path / "whole.py").write_text("import torch\n")
    assert looked_at(["half", "whole", "wanting"], tmp_path).stdout.split() == [
        "failed:",
        "half",
        "wanting",
    ]
