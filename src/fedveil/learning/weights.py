"""A state dictionary from a file: public weights that a model begins with."""

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

_SHOWN = 5  # names in a refusal
_INSIDE = ("state_dict", "model_state_dict", "model")  # under which checkpoints keep it


@dataclass(frozen=True)
class WeightsFile:
    """What is known of a file of weights.

    They are taken as public. Weights that were trained on the silos' own records are a release of their own, which no
    guarantee of a run counts.

    Attributes
    ----------
    file : str
        Its name.
    sha256 : str
        Of its bytes.
    source, licence : str
        As declared by who uses it; "" where nobody did.
    anew : tuple of str
        Parts that were left as they began.
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
    """Give a model the weights of a file; nothing in the file is run.

    Parameters
    ----------
    model : torch.nn.Module
        Is changed.
    path : str or Path
        A state dictionary of ``torch.save`` (read by ``weights_only=True``), or a file of safetensors.
    anew : sequence of str
        Parts that begin as the model made them, such as a head for other classes; the file's are left out.
    sha256 : str
        How the file's SHA-256 must begin, at least 8 hexadecimal digits; "" takes any file.
    source, licence : str
        Where the weights are from, and under which terms; kept in the summary.
    rename : callable, optional
        Gives the file's tensors the model's names.

    Returns
    -------
    WeightsFile
        What to write down of them.

    Raises
    ------
    FieldError
        For a file that is none, or weights of another architecture, with the names and shapes that differ.
    """
    parts = require_parts(model, anew, "anew")
    file = Path(path).expanduser()
    content = _content(file)
    digest = hashlib.sha256(content).hexdigest()
    if sha256 and (len(sha256) < 8 or not digest.startswith(sha256.lower())):
        accepted = f"the file's begins with {digest[:16]}: it is another file, or say so if you trust it"
        raise FieldError("sha256", sha256, accepted)
    state = _state(file) if rename is None else rename(_state(file))
    given = {name: value for name, value in state.items() if not within(name, parts)}
    wanted = {name: value for name, value in model.state_dict().items() if not within(name, parts)}
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = [f"{name} {_shape(wanted[name])}" for name in wanted if name not in given and name not in counters]
    unknown = [f"{name} {_shape(given[name])}" for name in given if name not in wanted]
    differing = [
        f"{name} {_shape(value)}, the model's {_shape(wanted[name])}"
        for name, value in given.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    said = [("lacks", missing), ("has unknown", unknown), ("has other shapes:", differing)]
    wrong = "; ".join(f"{what} {_some(names)}" for what, names in said if names)
    if wrong:
        accepted = f"are weights of another architecture: the file {wrong}. A part that should begin anew: anew = [...]"
        raise FieldError("weights", str(path), accepted)
    if not any(parameter.is_meta for parameter in model.parameters()):  # which only counts what there will be
        with torch.no_grad():
            model.load_state_dict(given, strict=False)
    return WeightsFile(file.name, digest, source, licence, parts)


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise FieldError("weights", str(file), "is no file: FedVeil downloads no weights, write a path")
    return file.read_bytes()


def _state(file: Path) -> dict[str, Tensor]:
    """Names and tensors of a file."""
    if file.suffix == ".safetensors":
        safe = optional("safetensors.torch", "files of safetensors need their package", "safetensors")
        try:
            loaded: Any = safe.load_file(str(file))
        except Exception as error:
            raise FieldError("weights", str(file), f"is no file of safetensors: {error}") from error
    else:
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            accepted = (
                "cannot be read with weights_only=True, which runs nothing that a file holds: save model.state_dict()"
            )
            raise FieldError("weights", str(file), f"{accepted} ({str(error).partition(chr(10))[0][:200]})") from error
    for key in _INSIDE:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise FieldError("weights", str(file), "must hold a state dictionary: names and tensors")
    state = {str(name): value for name, value in loaded.items()}
    if all(name.startswith("module.") for name in state):  # saved inside DataParallel
        state = {name.removeprefix("module."): value for name, value in state.items()}
    unfit = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if unfit:
        raise FieldError("weights", str(file), f"holds numbers that are not finite: {_some(unfit)}")
    return state


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
