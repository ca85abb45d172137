"""Initial weights from a file with a state dictionary; they count as public."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.learning.frozen import require_parts, within
from fedveil.registry import optional

_SHOWN = 5  # names shown in a refusal
_INSIDE = (
    "state_dict",
    "model_state_dict",
    "model",
)  # keys under which checkpoints store a state dictionary


@dataclass(frozen=True)
class WeightsFile:
    """Description of a weights file: name, digest and origin.

    The weights count as public. If they were trained on the silos' own records, they are a separate release that a
    run's guarantee does not include.

    Attributes
    ----------
    file : str
        Name of the file.
    sha256 : str
        SHA-256 of the file's bytes.
    source, licence : str
        Source and licence as the user declared them; "" if not declared.
    anew : tuple of str
        Parts of the model that kept their own initial weights.
    """

    file: str
    sha256: str
    source: str = ""
    licence: str = ""
    anew: tuple[str, ...] = ()


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    anew: Iterable[str] = (),
    sha256: str = "",
    source: str = "",
    licence: str = "",
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> WeightsFile:
    """Load the weights of a file into a model; nothing in the file is run.

    Parameters
    ----------
    model : torch.nn.Module
        Model, changed in place.
    path : str or Path
        State dictionary of ``torch.save`` (read with ``weights_only=True``), or a safetensors file.
    anew : sequence of str
        Parts that keep the model's own initial weights, such as a head for other classes; the file's are ignored.
    sha256 : str
        Required beginning of the file's SHA-256, at least 8 hexadecimal digits; "" accepts any file.
    source, licence : str
        Origin of the weights and their licence, for the summary.
    rename : callable, optional
        Function from the file's tensors by name to the same tensors under the model's names.

    Returns
    -------
    WeightsFile
        Description for the summary.

    Raises
    ------
    FieldError
        For a file that is not a state dictionary, or weights of another architecture. The text lists differing names
        and shapes.
    """
    parts = require_parts(model, anew, "anew")
    file = Path(path).expanduser()
    content = _content(file)
    digest = hashlib.sha256(content).hexdigest()
    if sha256 and (len(sha256) < 8 or not digest.startswith(sha256.lower())):
        accepted = (
            f"the file's begins with {digest[:16]}: it is another file, or say so if you trust it"
        )
        raise FieldError("sha256", sha256, accepted)
    state = _state(file)
    if rename is not None:
        state = rename(state)
    given = _outside(state, parts)
    wanted = _outside(model.state_dict(), parts)
    problem = _difference(given, wanted)
    if problem:
        accepted = f"are weights of another architecture: the file {problem}."
        raise FieldError(
            "weights", str(path), f"{accepted} A part that should begin anew: anew = [...]"
        )
    is_counted_only = any(
        parameter.is_meta for parameter in model.parameters()
    )  # in a model without memory yet
    if not is_counted_only:
        with torch.no_grad():
            model.load_state_dict(given, strict=False)
    return WeightsFile(file.name, digest, source, licence, parts)


def _outside(state: Mapping[str, Tensor], parts: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors that belong to none of these parts."""
    return {name: value for name, value in state.items() if not within(name, parts)}


def _difference(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> str:
    """Return the differences between file and model: missing and extra names, and other shapes; "" if there are none."""
    missing: list[str] = []
    for name, value in wanted.items():
        is_counter = name.endswith("num_batches_tracked")
        if name not in given and not is_counter:
            missing.append(f"{name} {_shape(value)}")
    unknown: list[str] = []
    differing: list[str] = []
    for name, value in given.items():
        if name not in wanted:
            unknown.append(f"{name} {_shape(value)}")
        elif value.shape != wanted[name].shape:
            differing.append(f"{name} {_shape(value)}, the model's {_shape(wanted[name])}")
    problems: list[str] = []
    if missing:
        problems.append(f"lacks {_some(missing)}")
    if unknown:
        problems.append(f"has unknown {_some(unknown)}")
    if differing:
        problems.append(f"has other shapes: {_some(differing)}")
    return "; ".join(problems)


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise FieldError(
            "weights", str(file), "is no file: FedVeil downloads no weights, write a path"
        )
    return file.read_bytes()


def _state(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a file, by name."""
    loaded = _from_safetensors(file) if file.suffix == ".safetensors" else _from_torch(file)
    for key in _INSIDE:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    is_state = (
        isinstance(loaded, Mapping)
        and loaded
        and all(isinstance(value, Tensor) for value in loaded.values())
    )
    if not is_state:
        raise FieldError("weights", str(file), "must hold a state dictionary: names and tensors")
    state = {str(name): value for name, value in loaded.items()}
    if all(name.startswith("module.") for name in state):  # saved inside DataParallel
        state = {name.removeprefix("module."): value for name, value in state.items()}
    unfit: list[str] = []
    for name, value in state.items():
        if value.is_floating_point() and not value.isfinite().all():
            unfit.append(name)
    if unfit:
        raise FieldError("weights", str(file), f"holds numbers that are not finite: {_some(unfit)}")
    return state


def _from_safetensors(file: Path) -> Any:
    safe = optional("safetensors.torch", "files of safetensors need their package", "safetensors")
    try:
        return safe.load_file(str(file))
    except Exception as error:
        raise FieldError("weights", str(file), f"is no file of safetensors: {error}") from error


def _from_torch(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        first_line, _, _ = str(error).partition("\n")
        accepted = "cannot be read with weights_only=True, which runs nothing that a file holds"
        raise FieldError(
            "weights", str(file), f"{accepted}: save model.state_dict() ({first_line[:200]})"
        ) from error


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _some(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
