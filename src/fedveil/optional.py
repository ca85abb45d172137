"""Libraries that only some users need, imported when they are."""

from __future__ import annotations

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
