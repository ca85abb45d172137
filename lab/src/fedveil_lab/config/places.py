"""Places of a configuration's files and modules, by one rule.

A relative path, and a module of yours, is looked for in the folder that FedVeil is called from and in the folder of the
TOML file. A path found in the first stays as written. One found in the second is kept with its whole path, so that the
run's own configuration finds it from anywhere. If both folders have the file, it is refused.
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
    """Return plain values of a configuration, with whole paths to files that lie only beside the TOML file.

    Parameters
    ----------
    values : mapping
        Values as the file has them.
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
    """Find a module's file: `package.module:Net`, or the same with a folder before it: `models/net:Net`."""
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
    """Whether something lies beside the file, and nothing in the working directory."""
    here = next(filter(Path.exists, places(Path())), None)
    there = next(filter(Path.exists, places(folder)), None)
    if here is not None and there is not None and not here.samefile(there):
        accepted = f"is in two places: {here.absolute()} and {there.absolute()}; write the whole path of the one you mean"
        raise FieldError(field, text, accepted)
    return there is not None and here is None
