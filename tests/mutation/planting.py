"""A planted bug: an edit of the syntax tree of one definition, wherever in the packages that definition stands."""

import ast
import copy
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(
    sorted(
        file.parent for start in ("src", "*/src") for file in ROOT.glob(f"{start}/*/__init__.py")
    )
)
BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Bug:
    """An edit: `old`, once inside of `where`, becomes `new`; each of `tests` must catch it by itself.

    No file is named, so that a move breaks nothing. `where` is the qualified name of a class or function, or the name
    of a constant of a module: it is looked for in all packages, and only one place may hold `old`. `old` and `new` are
    expressions, or statements one after another. ``...`` in `old` stands for any expression, or for any statements as
    a whole block, and in `new` for what it stood for, in their order.
    A test is a test module's name, or ``name::test``; where two modules share a name, ``folder/name``.
    """

    name: str
    where: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, text):
        """A module's text with the bug in it, as `ast.unparse` writes it."""
        tree, done = self.edited(text)
        assert done == 1, f"{self.where} holds the place of {self.name!r} {done} times"
        return ast.unparse(tree)

    def edited(self, text):
        """A module's tree after the edit, and how often it was made."""
        tree, edit = ast.parse(text), Edit(self.old, self.new)
        for definition in definitions(tree, self.where.split(".")):
            edit.visit(definition)
        return ast.fix_missing_locations(tree), edit.done


class Sources:
    """The modules of some packages, by what they define."""

    def __init__(self, packages):
        self.packages, self.places, self.parts = packages, {}, {}

    @cached_property
    def files(self):
        """The modules that define a name at their top."""
        found = defaultdict(list)
        for package in self.packages:
            for file in sorted(package.rglob("*.py")):
                tree = parsed(file.read_text())
                for name in dict.fromkeys(name for node in inside(tree) for name in names_of(node)):
                    found[name].append(file)
        return found

    def file_of(self, bug):
        """The one module that holds the place of a bug."""
        if bug not in self.places:
            candidates = self.files.get(outermost(bug), [])
            holding = [
                file for file in candidates if bug.edited(self.part(file, outermost(bug)))[1]
            ]
            looked_at = ", ".join(str(file) for file in holding or candidates) or "no module"
            said = f"{bug.where} holds {bug.old!r}, the place of {bug.name!r}, in {len(holding)} modules"
            assert len(holding) == 1, f"{said}; looked at: {looked_at}"
            self.places[bug] = holding[0]
        return self.places[bug]

    def part_for(self, bug):
        """A bug's module without the definitions beside the one that it is planted in."""
        return self.part(self.file_of(bug), outermost(bug))

    def part(self, file, name):
        if (file, name) not in self.parts:
            body = [
                one for one in parsed(file.read_text()).body if getattr(one, "name", name) == name
            ]
            self.parts[file, name] = ast.unparse(ast.Module(body, []))
        return self.parts[file, name]


@cache
def parsed(text):
    """A module's tree, which nobody may edit."""
    return ast.parse(text)


def outermost(bug):
    return bug.where.partition(".")[0]


@cache
def modules_of_tests(root):
    """All modules below a root's tests, ascending, by their name."""
    found = defaultdict(list)
    for file in sorted(root.glob("tests/**/*.py")):
        found[file.stem].append(file)
    return found


def file_of_test(test, root=ROOT):
    """The path, as pytest takes it, of a test module by its name."""
    name, colons, inner = test.partition("::")
    modules = modules_of_tests(root)[Path(name).name]
    found = [file for file in modules if file.match(f"{name}.py")]
    assert len(found) == 1, (
        f"{len(found)} test modules are {name!r}; name the folder too where there are several: {found}"
    )
    return found[0].relative_to(root).as_posix() + colons + inner


class Edit(ast.NodeTransformer):
    """Put `new` wherever `old` stands; `done` says how often."""

    def __init__(self, old, new):
        self.old, self.new, self.done = ast.parse(old).body, ast.parse(new).body, 0
        self.single = all(
            len(part) == 1 and isinstance(part[0], ast.Expr) for part in (self.old, self.new)
        )

    def generic_visit(self, node):
        super().generic_visit(node)
        for name, block in ast.iter_fields(node):
            if (
                not self.single
                and isinstance(block, list)
                and all(isinstance(part, ast.stmt) for part in block)
            ):
                setattr(node, name, self.edited(block))
        return node

    def visit(self, node):
        if (
            self.single
            and isinstance(node, ast.expr)
            and (found := matched(self.old[0].value, node)) is not None
        ):
            self.done += 1
            return filled(self.new[0].value, found)
        return super().visit(node)

    def edited(self, block):
        """A block of statements."""
        for start in range(len(block) - len(self.old) + 1):
            end = start + len(self.old)
            parts = [matched(*pair) for pair in zip(self.old, block[start:end], strict=True)]
            if None not in parts:
                self.done += 1
                found = [one for part in parts for one in part]
                return [
                    *block[:start],
                    *(filled(statement, found) for statement in self.new),
                    *block[end:],
                ]
        return block


def matched(pattern, node):
    """What each ``...`` of a pattern stands for in a node, or None; where a name is read or written does not matter."""
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return None
        if len(pattern) == 1 and isinstance(pattern[0], ast.Expr) and anything(pattern[0].value):
            return [node]
        parts = [matched(*pair) for pair in zip(pattern, node, strict=False)]
        return (
            [one for part in parts for one in part]
            if len(pattern) == len(node) and None not in parts
            else None
        )
    if not isinstance(pattern, ast.AST):
        return [] if type(pattern) is type(node) and pattern == node else None
    if isinstance(node, ast.expr) and anything(pattern):
        return [node]
    if type(pattern) is not type(node):
        return None
    names = [name for name in pattern._fields if name not in ("ctx", "kind", "type_comment")]
    return matched(
        [getattr(pattern, n, None) for n in names], [getattr(node, n, None) for n in names]
    )


def anything(pattern):
    """Whether a pattern is ``...``."""
    return isinstance(pattern, ast.Constant) and pattern.value is ...


def filled(pattern, found):
    """A copy of a pattern with what was found at each ``...``, first come, first served."""

    class Fill(ast.NodeTransformer):
        def visit_Expr(self, node):
            return found.pop(0) if anything(node.value) else self.generic_visit(node)

        def visit_Constant(self, node):
            return found.pop(0) if anything(node) else node

    found = list(found)
    return Fill().visit(copy.deepcopy(pattern))


def definitions(tree, names):
    """The definitions of a qualified name."""
    if not names:
        return [tree]
    return [
        found
        for node in inside(tree)
        if names[0] in names_of(node)
        for found in definitions(node, names[1:])
    ]


def names_of(node):
    """The names that a statement defines: a class's, a function's, a constant's."""
    if isinstance(node, BLOCKS):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def inside(node):
    """What a node holds, but for what its definitions hold."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, BLOCKS):
            yield from inside(child)
