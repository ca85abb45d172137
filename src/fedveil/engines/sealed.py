"""File format for tensors and plain values, with a checksum over both."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from fedveil.reading import json_of

PLAIN = "fedveil"  # only entry of the metadata: the checksum, a space, the values


def sealed(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> bytes:
    """Write tensors and plain values to bytes, the content of a file.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Tensors of any shape and type.
    plain : mapping
        Plain JSON values.
    """
    own = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    text = json.dumps(plain)
    return save(
        own, metadata={PLAIN: f"{_checksum(own, text)} {text}"}
    )  # the order of several entries is not kept


def unsealed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and plain values of a file, after checking the checksum.

    Raises
    ------
    ValueError, OSError
        If the file cannot be read, or differs in any bit from what was written.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    checksum, _, text = metadata.get(PLAIN, "").partition(" ")
    if checksum != _checksum(tensors, text):
        raise ValueError("its checksum does not fit, or it is of an earlier version")
    plain = json_of(text)
    if not isinstance(plain, dict):
        raise ValueError("its values are no table")
    return tensors, plain


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for key in sorted(tensors):
        value = tensors[key]
        digest.update(json.dumps([key, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
