"""What is imported when it is first used: libraries that only some users need, and the names of a package."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedveil.errors import FedVeilError


def optional(module: str, need: str, install: str) -> Any:
    """A module, or an error that says how to get it.

    Parameters
    ----------
    module : str
        Its full name.
    need : str
        What needs it, for the error: ``"decoding images needs Pillow"``.
    install : str
        What pip is to install.

    Raises
    ------
    FedVeilError
        If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise FedVeilError(f"{need}: pip install {install}") from error


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__, __dir__, __all__`` of a package, from what its ``if TYPE_CHECKING`` block imports.

    So each name is written once, and waits for PyTorch, pydantic and pandas until it is used. Type checkers read the
    same block, whose names are exported because each is imported as itself.

    Parameters
    ----------
    package : str
        Its ``__name__``, while it is being imported.
    """
    module = sys.modules[package]
    source = getattr(module.__spec__, "loader").get_source(package)  # noqa: B009 - a loader that has one
    owners = {
        str(alias.asname): (str(line.module), alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def load(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        owner, own = owners[name]
        value = import_module(f"{package}.{own}") if owner == package else getattr(import_module(owner), own)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *owners}), sorted(owners)
