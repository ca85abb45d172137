"""Each module alone: nothing that it takes from another is there only because somebody else imported it before."""

import ast

import pytest
from blocks_kit import PAGES, ROOT, blocks_of, fresh, python

PACKAGES = {"fedveil": ROOT / "src" / "fedveil", "fedveil_studies": ROOT / "studies" / "src" / "fedveil_studies"}
FILES = {
    ".".join((name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
    for name, root in PACKAGES.items()
    for path in root.rglob("*.py")
}
SOURCES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
OTHERS = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]


def statements(tree):
    """What a module runs when it is imported, and the block for types, whose names a package offers lazily."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            waiting += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]


def bound(node):
    """Names that an import binds -> the module each stands for, or None for what is no module of ours."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname or top), (alias.name if alias.asname else top) if top in PACKAGES else None
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield (alias.asname or alias.name), whole if whole in SOURCES else None


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
    for node in statements(SOURCES[name]):
        names |= dict(bound(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = None
        for target in ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else ():
            if isinstance(target, ast.Name):
                names.setdefault(target.id, None)
    for node in statements(SOURCES[name]):  # importing a module below it sets the attribute, too
        of_it = [m for _, m in bound(node) if m is not None] + (
            [node.module] if isinstance(node, ast.ImportFrom) else []
        )
        for module in of_it:
            if module and module.startswith(f"{name}.") and module in SOURCES and not lazily(name, node):
                names.setdefault(
                    module.removeprefix(f"{name}.").partition(".")[0],
                    f"{name}.{module[len(name) + 1 :].partition('.')[0]}",
                )
    return names


def lazily(name, node):
    """Whether an import stands in the block for types, so that nothing is imported."""
    blocks = [one for one in SOURCES[name].body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    return any(node in block.body for block in blocks)


OFFERED = {name: offered(name) for name in SOURCES}


def missing(tree):
    """Attributes of our modules in a source that no module offers by itself."""
    names = {name: module for node in ast.walk(tree) for name, module in bound(node) if module in SOURCES}
    wholes = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
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
            if attribute not in OFFERED[module]:
                found.add(inner)
                break
            module = OFFERED[module][attribute]
            if module not in SOURCES:
                break
    return found


@pytest.mark.parametrize("place", ["src", "others", "pages"])
def test_each_attribute_of_a_module_is_one_that_it_offers_by_itself(place):
    if place == "src":
        trees = SOURCES
    elif place == "others":
        trees = {str(path): ast.parse(path.read_text(encoding="utf-8")) for path in OTHERS}
    else:
        blocks = [block for page in PAGES for block in blocks_of(page) if block.kind in ("python", "py")]
        trees = {f"{block.page}: {block.first}": ast.parse(block.text) for block in blocks}
    assert {name: found for name, tree in trees.items() if (found := missing(tree))} == {}


def test_an_attribute_that_needs_another_import_is_found():
    assert missing(ast.parse("from fedveil import config\nconfig.loading.text_of")) == {"fedveil.config.loading"}
    assert missing(ast.parse("import fedveil as fv\nfv.config.load\nfv.methods.build\nfv.GlobalDP.name")) == set()
    assert missing(ast.parse("import fedveil.config.loading\nfedveil.config.loading.text_of")) == set()


LAZY = """
import importlib, sys
found = []
for name in {names!r}:
    module = importlib.import_module(name)
    for attribute in getattr(module, "__all__", []):
        try:
            getattr(module, attribute)
        except ImportError as error:
            if not {optional!r} & set(str(error).replace("'", " ").split()):
                raise
"""
OPTIONAL = {"flwr", "nvflare", "matplotlib", "ray", "wandb"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in FILES if not name.endswith("__main__")))
def test_a_module_is_imported_alone_and_has_what_it_offers(name, tmp_path):
    needs = {"nvflare": "nvflare", "flower": "flwr", "node": "flwr"}
    for part, package in needs.items():
        if part in name.split("."):
            pytest.importorskip(package)
    done = fresh(
        [*python(), "-W", "error::DeprecationWarning:fedveil", "-c", LAZY.format(names=[name], optional=OPTIONAL)],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
