"""Describe the model of a run: at its end, or later from its configuration and data."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load as tensors_of
from torch import Tensor, nn

from fedveil import learning
from fedveil.errors import FieldError
from fedveil.files import CONFIG
from fedveil.home import (
    DESCRIPTION,
    PRIVATE_ROWS,
    Description,
    describe,
    description_in,
    hypotheses_in,
    labelled_examples,
    weights_of,
)
from fedveil.reading import json_of
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.loading import load
from fedveil_lab.runs.deal import Dealt, data_digest, deal_out
from fedveil_lab.runs.models import with_features
from fedveil_lab.runs.prepare import Setup

BEGINNING = (
    "weights",
    "sha256",
    "source",
    "licence",
    "anew",
)  # keys of a file that the run's model began with
FEATURES = "features"  # of patches that were learned on public images: the run stores none


def about_of(setup: Setup) -> Description:
    """Describe the model of a run by declared constants and names."""
    config, dealt = setup.config, setup.dealt
    about = _described(setup.learner.model, config, dealt)
    inputs: dict[str, Any] = dict(about.inputs)
    if config.data.patches is not None:
        inputs = {"kind": FEATURES, "patches": config.data.patches}
    return replace(
        about,
        inputs=inputs,
        positive_named=config.data.positive is not None,
        note=_note(config, dealt.dataset.note),
    )


def _described(module: nn.Module, config: Config, dealt: Dealt) -> Description:
    """Describe a network and its data set; the description assumes that the weights come with it."""
    gone = {*BEGINNING} & {*learning.tuning_of(config.model.name)}
    options = {key: value for key, value in config.model.options.items() if key not in gone}
    about = describe(module, config.model.name, options, dealt.dataset, config.local.loss)
    about = replace(about, read_off=tuple(config.read_off))
    if dealt.raw_shape is None:
        return about
    return replace(about, input_shape=dealt.raw_shape, inputs={"kind": FEATURES})


def described(folder: Path, config: str | Path | None = None) -> Description:
    """Read the description of a folder's model, or make it from the configuration and its data.

    Parameters
    ----------
    folder : Path
        Folder of a run, a cell, or a deployed server.
    config : path, optional
        A configuration whose ``[data]`` and ``[model]`` describe the model of a server's folder.

    Raises
    ------
    FieldError
        If the folder lacks something, or the data are not those of the run.
    """
    weights = weights_of(folder)
    if config is None and ((folder / DESCRIPTION).is_file() or not (folder / CONFIG).is_file()):
        return description_in(folder)
    spec = load(folder if config is None else str(config))
    summary = _summary_of(folder)
    about = _anew(spec, folder)
    known = summary.get("data", {}).get("digest")
    if config is None and known and known != data_digest(spec.data):
        accepted = "are not the run's any more, and the folder lacks model.json: class names and columns may be others"
        raise FieldError("data", spec.data.name, accepted)
    return about.of(weights, hypotheses_in(tensors_of(weights))).promising(summary)


def refuse_own_rows(folder: Path, about: Description, rows: Path) -> None:
    """Refuse rows from the run's own data: the same file, a copy, or a part of it.

    Raises
    ------
    FieldError
        If rows are the run's own, or its data cannot be read.
    """
    if not (folder / CONFIG).is_file():
        return
    spec = load(folder)
    named = [
        Path(str(spec.data.options[key]))
        for key in ("path", "test_path")
        if spec.data.options.get(key)
    ]
    own = [file for file in named if file.exists()]
    is_own = any(rows.resolve().is_relative_to(file.resolve()) for file in own)
    if own and not is_own:
        x, labels = labelled_examples(about, rows)
        dataset = deal_out(spec.data, spec.seed).dataset
        is_own = _rows(x, labels.tolist()) <= _rows(dataset.x, dataset.y.tolist())
    if is_own:
        raise FieldError("DATA", str(rows), f"holds rows of the run's own: {PRIVATE_ROWS}")


def _rows(x: Tensor, labels: Sequence[int]) -> set[bytes]:
    """Return each row's bytes with its label."""
    return {
        row.contiguous().numpy().tobytes() + str(int(y)).encode()
        for row, y in zip(x, labels, strict=True)
    }


def _anew(spec: Config, folder: Path) -> Description:
    try:
        dealt = with_features(spec, deal_out(spec.data, spec.seed))
    except FieldError as error:
        lacks = "lacks model.json: order and scaling of the columns, names of the classes; and its data are not here"
        raise FieldError("RUN", str(folder), f"{lacks} ({error})") from error
    module = learning.build_model(spec.model.name, seed=0, **dealt.shape, **spec.model.options)
    about = _described(module, spec, dealt)
    if spec.data.patches is not None:
        inputs = {"kind": FEATURES}
    else:
        inputs = dict(about.inputs)
    return replace(
        about,
        inputs=inputs,
        positive_named=spec.data.positive is not None,
        note=_note(spec, dealt.dataset.note),
    )


def _note(config: Config, note: str) -> str:
    """Return the note on a public data set; a note on the user's own file is not exported, as it names the file."""
    if "path" in config.data.options:
        return ""
    return note


def _summary_of(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    try:
        values = json_of(file.read_bytes())
    except (OSError, ValueError) as error:
        accepted = (
            f"lacks summary.json, which says what was promised ({error}): finish or restore the run"
        )
        raise FieldError("RUN", str(folder), accepted) from error
    return dict(values)
