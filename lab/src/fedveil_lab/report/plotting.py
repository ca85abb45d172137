"""Load Matplotlib for writing files, independent of the user's backend, matplotlibrc and style.

Every drawing module imports Matplotlib's names from here.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@contextmanager
def _without_settings() -> Iterator[None]:
    """Hide the environment variables with Matplotlib's settings, and point to its default file."""
    spec = find_spec("matplotlib")
    packaged = Path(str(spec and spec.origin)).with_name("mpl-data") / "matplotlibrc"
    own = {"MPLBACKEND": None, "MATPLOTLIBRC": str(packaged)}
    before = {name: os.environ.pop(name, None) for name in own}
    os.environ.update({name: value for name, value in own.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _load() -> Any:
    """Load Matplotlib, with the user's settings if they can be read, as a notebook may draw with it too."""
    try:
        import matplotlib
    except ImportError:
        raise
    except (
        Exception
    ):  # a backend of another environment, a file of settings that is damaged or secret
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            del sys.modules[name]  # what was half loaded
        with _without_settings():
            import matplotlib
    return matplotlib


matplotlib = _load()

from matplotlib.axes import Axes as Axes  # noqa: E402
from matplotlib.figure import Figure as Figure  # noqa: E402
from matplotlib.lines import Line2D as Line2D  # noqa: E402
from matplotlib.ticker import MaxNLocator as MaxNLocator  # noqa: E402

_DEFAULTS = {
    name: value
    for name, value in matplotlib.rcParamsDefault.items()
    if not name.startswith("backend")
}


@contextmanager
def own_style(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw with Matplotlib's defaults and these changes, whatever style the user set; a decorator or context manager."""
    with matplotlib.rc_context({**_DEFAULTS, **(changes or {})}):
        yield
