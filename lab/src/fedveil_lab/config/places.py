"""Find the files and modules that a configuration names.

Relative paths and your own modules are searched in the working directory and in the TOML file's folder. A path found in
the first stays as written. A path found in the second is made absolute, so the run's configuration finds it from
anywhere. A file in both folders is refused.
"""

import os.path
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError
from fedveil.registry import placed

FILES = (("data", "path"), ("data", "test_path"), ("model", "weights"))
MODULES = (("model", "module"), ("model", "name"), ("local", "loss"))


def with_places(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a configuration's plain values with absolute paths to files that lie only beside the TOML file.

    Parameters
    ----------
    values : mapping
        Plain values of the file.
    folder : Path
        The TOML file's folder.

    Raises
    ------
    FieldError
        If both folders have a file of that name.
    """
    found = dict(values)
    for keys, place in ((FILES, _file), (MODULES, _module)):
        for section, key in keys:
            table = found.get(section)
            if isinstance(table, Mapping) and isinstance(table.get(key), str):
                found[section] = {**table, key: place(f"{section}.{key}", table[key], folder)}
    return found


def _file(field: str, text: str, folder: Path) -> str:
    path = Path(text)
    if not text or path.is_absolute() or text.startswith("~"):
        return text
    if _beside(field, text, folder, lambda root: [root / path]):
        return os.path.abspath(folder / path)
    return text


def _module(field: str, text: str, folder: Path) -> str:
    """Find the file of a module: `package.module:Net`, or with a folder before it, `models/net:Net`."""
    inner, module, attribute = placed(text)
    if not attribute or Path(inner).is_absolute():
        return text
    top = module.split(".")[0]

    def places(root: Path) -> list[Path]:
        return [root / inner / f"{top}.py", root / inner / top]

    if not _beside(field, text, folder, places):
        return text
    return f"{Path(os.path.abspath(folder / inner)).as_posix()}/{module}:{attribute}"


def _beside(field: str, text: str, folder: Path, places: Callable[[Path], list[Path]]) -> bool:
    """Whether a file lies beside the TOML file and not in the working directory."""
    here = next(filter(Path.exists, places(Path())), None)
    there = next(filter(Path.exists, places(folder)), None)
    if here is not None and there is not None and not here.samefile(there):
        accepted = f"is in two places: {here.absolute()} and {there.absolute()}; write the whole path of the one you mean"
        raise FieldError(field, text, accepted)
    return there is not None and here is None
