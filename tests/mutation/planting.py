"""A planted bug: an edit of the syntax tree of one definition, whose place no layout, comment or wording can hide."""

import ast
import copy
from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """An edit: `old`, once inside of `where`, becomes `new`; each of `tests` must catch it by itself.

    `file` lies in one of the packages; `where` is the qualified name of a class or function in it, or "" for the whole
    module. `old` and `new` are expressions, or statements one after another.
    ``...`` in `old` stands for any expression, or for any statements as a whole block, and in `new` for what it stood
    for, in their order.
    """

    name: str
    file: str
    where: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, text):
        """The module's text with the bug in it, as `ast.unparse` writes it."""
        tree, edit = ast.parse(text), Edit(self.old, self.new)
        for definition in definitions(tree, self.where.split(".") if self.where else []):
            edit.visit(definition)
        assert edit.done == 1, f"{self.file}: {self.where} holds the place of {self.name!r} {edit.done} times"
        return ast.unparse(ast.fix_missing_locations(tree))


class Edit(ast.NodeTransformer):
    """Put `new` wherever `old` stands; `done` says how often."""

    def __init__(self, old, new):
        self.old, self.new, self.done = ast.parse(old).body, ast.parse(new).body, 0
        self.single = all(len(part) == 1 and isinstance(part[0], ast.Expr) for part in (self.old, self.new))

    def generic_visit(self, node):
        super().generic_visit(node)
        for name, block in ast.iter_fields(node):
            if not self.single and isinstance(block, list) and all(isinstance(part, ast.stmt) for part in block):
                setattr(node, name, self.edited(block))
        return node

    def visit(self, node):
        if self.single and isinstance(node, ast.expr) and (found := matched(self.old[0].value, node)) is not None:
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
                return [*block[:start], *(filled(statement, found) for statement in self.new), *block[end:]]
        return block


def matched(pattern, node):
    """What each ``...`` of a pattern stands for in a node, or None; where a name is read or written does not matter."""
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return None
        if len(pattern) == 1 and isinstance(pattern[0], ast.Expr) and anything(pattern[0].value):
            return [node]
        parts = [matched(*pair) for pair in zip(pattern, node, strict=False)]
        return [one for part in parts for one in part] if len(pattern) == len(node) and None not in parts else None
    if not isinstance(pattern, ast.AST):
        return [] if type(pattern) is type(node) and pattern == node else None
    if isinstance(node, ast.expr) and anything(pattern):
        return [node]
    if type(pattern) is not type(node):
        return None
    names = [name for name in pattern._fields if name not in ("ctx", "kind", "type_comment")]
    return matched([getattr(pattern, n, None) for n in names], [getattr(node, n, None) for n in names])


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
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [
        found
        for node in inside(tree)
        if isinstance(node, kinds) and node.name == names[0]
        for found in definitions(node, names[1:])
    ]


def inside(node):
    """What a node holds, but for what its definitions hold."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from inside(child)
