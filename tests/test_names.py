"""The public names: what stands under `fedveil`, its signatures, and what its rooms export.

After a change that is meant: ``python tests/test_names.py`` writes tests/names.txt anew.
"""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import pydantic
import pytest

import fedveil as fv
import fedveil_lab

SNAPSHOT = Path(__file__).with_name("names.txt")
PACKAGES = [Path(package.__path__[0]) for package in (fv, fedveil_lab)]
OUTSIDE = {
    "nn",
    "torch",
    "Tensor",
    "Path",
    "Any",
}  # of a signature's names, those of other packages with a like in ours


def offered():
    """Everything that `fedveil` names, rooms left out, by name."""
    values = {name: getattr(fv, name) for name in fv.__all__}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}


def rooms():
    """The rooms that `fedveil` names."""
    return {name: getattr(fv, name) for name in fv.__all__ if inspect.ismodule(getattr(fv, name))}


def methods(thing):
    """Public functions, properties and class methods of a class of ours, without those of a base that is named too."""
    found, others = {}, {id(other) for other in offered().values()} - {id(thing)}
    for kind in reversed(inspect.getmro(thing)):
        if kind.__module__.startswith("fedveil") and id(kind) not in others:
            found |= {
                n: getattr(m, "__func__", m) for n, m in vars(kind).items() if not n.startswith("_")
            }
    return {
        n: m.fget if isinstance(m, property) else m
        for n, m in found.items()
        if callable(m) or hasattr(m, "fget")
    }


def as_typed(signature, thing, made):
    """A signature whose types are the text of the source, not what their aliases stand for."""
    kinds, types = reversed(inspect.getmro(thing)) if is_dataclass(thing) else [made], {}
    for part in kinds:
        if part.__module__.startswith("fedveil"):
            [node] = ast.parse(textwrap.dedent(inspect.getsource(part))).body
            if isinstance(node, ast.ClassDef):
                found = {
                    n.target.id: n.annotation for n in node.body if isinstance(n, ast.AnnAssign)
                }
            else:
                found = {n.arg: n.annotation for n in ast.walk(node.args) if isinstance(n, ast.arg)}
                found["return"] = node.returns
            types |= {k: ast.unparse(v).strip("'") for k, v in found.items() if v}
    typed = [
        p.replace(annotation=types.get(p.name, p.annotation)) for p in signature.parameters.values()
    ]
    return signature.replace(
        parameters=typed, return_annotation=types.get("return", signature.return_annotation)
    )


@cache
def written(thing):
    """A signature as text, the same in every process."""
    if isinstance(thing, type) and issubclass(thing, pydantic.BaseModel):
        return "(a configuration: docs/configuration.md)"
    made = thing.__init__ if isinstance(thing, type) else thing
    if isinstance(thing, type) and (
        not inspect.isfunction(made) or issubclass(thing, Exception) or made.__module__ == "typing"
    ):
        return ""
    text = re.sub(r" at 0x[0-9a-f]+", "", str(as_typed(inspect.signature(made), thing, made)))
    return re.sub(r"^\(self(, )?", "(", text)


def lines():
    """The snapshot: each name with its signature, and those of its methods."""
    for name, thing in sorted(offered().items()):
        yield f"{name}{written(thing)}"
        if isinstance(thing, type) and not issubclass(thing, pydantic.BaseModel):
            yield from (
                f"    {n}{written(m)}"
                for n, m in sorted(methods(thing).items())
                if inspect.isfunction(m)
            )


def test_names_and_signatures_are_those_that_were_promised():
    assert SNAPSHOT.read_text(encoding="utf-8").splitlines() == list(lines())


def classes():
    """Names of classes, each with the modules that have a class or an alias of that name at their top."""
    found, ours = {}, set()
    for path in (path for package in PACKAGES for path in package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            name = node.name if isinstance(node, ast.ClassDef) else ""
            ours.add(name)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                name = ast.unparse(node.targets[0])
            if re.fullmatch(r"[A-Z]+[a-z]\w*", name):
                found.setdefault(name, []).append(path)
    return {name: paths for name, paths in found.items() if name in ours}


def signed():
    """Names in the signatures of what `fedveil` names."""
    for thing in offered().values():
        parts = [thing] if not isinstance(thing, type) else [thing, *methods(thing).values()]
        for part in parts:
            if callable(part) and not (
                isinstance(part, type) and issubclass(part, pydantic.BaseModel)
            ):
                yield from re.findall(
                    r"[A-Za-z_]\w*", re.sub(r"'[^']*'\]|= ?'[^']*'", "", written(part))
                )


def test_what_stands_in_a_public_signature_can_be_reached_and_means_one_thing():
    known = classes()
    needed = {name for name in signed() if name in known and name not in OUTSIDE}
    assert {"Source", "Ledger", "Learner", "Broadcast", "Round"} <= needed
    twice = {name: known[name] for name in needed if len(known[name]) > 1}
    assert not twice
    offers = {*fv.__all__} | {name for room in rooms().values() for name in dir(room)}
    missing = needed - offers
    assert not missing


def test_what_a_user_has_to_make_stands_at_the_front():
    groups = "Execution EarlyStopping Budgets Evaluation Shared PerClient"
    parts = "Probe Behaviour SecureSource Policy Learner SiteKey Publishing Filter ServerParty"
    assert {*groups.split(), *parts.split()} <= {*fv.__all__}


def test_every_room_names_each_name_once():
    assert not [
        p
        for package in PACKAGES
        for p in package.rglob("__init__.py")
        if "__all__ = [" in p.read_text(encoding="utf-8")
    ]
    for room in rooms().values():
        assert [name for name in dir(room) if not name.startswith("_")]


def test_names_load_when_they_are_used_and_not_before():
    code = (
        "import sys, fedveil, fedveil_lab.config, fedveil.data; assert 'torch' not in sys.modules\n"
        "import fedveil.learning, fedveil.engines; assert not {'sklearn', 'PIL'} & set(sys.modules)\n"
        "for p in (fedveil, fedveil_lab.config, fedveil.data): print(len([getattr(p, n) for n in p.__all__]))\n"
        "assert 'PIL' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert min(map(int, found.stdout.split())) >= 5
    for package in (fv, fv.config, fv.data):
        with pytest.raises(AttributeError, match="misspelt"):
            getattr(package, "misspelt")  # noqa: B009


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
