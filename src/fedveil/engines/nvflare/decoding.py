"""Objects that a process must not make from a message: FLARE reads or makes files of the process for them.

FLARE decodes a whole message before any filter sees it. It makes objects of its own list of classes, and a few of them
stand for files. FLARE replaces a file's datum by the file's content when it sends the datum on. It sends a message's
cookies back with each answer. So whoever sends a datum as a cookie would get any file that the process may read.
"""

from typing import Any

import nvflare.fuel.utils.fobs.fobs as decoder
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.class_loader import get_class_name
from nvflare.fuel.utils.fobs.datum import Datum
from nvflare.fuel.utils.fobs.decomposer import Decomposer

from fedveil.errors import FieldError

OF_FILES = (Datum, Workspace)


class NotDecoded(Decomposer):  # type: ignore[misc]
    """Decomposer of a class that no message may name.

    Parameters
    ----------
    kind : type
        The class.
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def supported_type(self) -> type:
        """Return the class."""
        return self.kind

    def decompose(self, target: Any, manager: Any = None) -> Any:
        """Refuse to send such an object."""
        raise self._error()

    def recompose(self, data: Any, manager: Any = None) -> Any:
        """Refuse to make such an object."""
        raise self._error()

    def _error(self) -> FieldError:
        return FieldError("message", self.kind.__name__, "stands for files: no message may hold it")


def narrow_decoding() -> None:
    """Let this process make no object of `OF_FILES` from a message, from now on.

    Raises
    ------
    FieldError
        If this FLARE keeps its decoder's classes elsewhere.
    """
    known = getattr(decoder, "_decomposers", None)
    if not isinstance(known, dict):
        accepted = "is where no FLARE from 2.7 to 2.9 keeps its classes: a message could read files"
        raise FieldError("fobs", type(known).__name__, accepted)
    for kind in OF_FILES:
        known[get_class_name(kind)] = NotDecoded(kind)
