"""The last model of a finished cell, measured once more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedveil.config import Config
from fedveil.config.folders import way_out
from fedveil.config.sections import Data
from fedveil.errors import FieldError, damaged
from fedveil.grid import Outcome
from fedveil.layout import Layout
from fedveil.learning import build_model, predict
from fedveil.runs.deal import deal_out


@dataclass(frozen=True, eq=False)
class Examples:
    """What a model is measured on: examples, their classes, and how many classes there are."""

    x: Tensor
    y: Tensor
    classes: int


def test_half(config: Config) -> Examples:
    """What is left of the set's test half when the server has taken its share: data and seed decide it."""
    return _test_half(config.data.model_dump_json(), config.seed)


def outputs(outcome: Outcome, examples: Examples) -> Tensor:
    """Logits [N, classes] of the cell's last model.

    Raises
    ------
    FieldError
        If the model's file is damaged, or the run left none.
    """
    if outcome.folder is None:
        raise FieldError("--out", None, "this measure looks at models, which only runs in a folder leave")
    config, path = outcome.cell.config, outcome.folder / "model.safetensors"
    shape = tuple(examples.x.shape[1:])
    module = build_model(
        config.model.name, input_shape=shape, outputs=examples.classes, seed=config.seed, **config.model.options
    )
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise damaged("model", path, error, way_out(outcome.folder)) from error
    layout = Layout.from_module(module)
    return predict(module, layout, layout.read(module), examples.x)


@lru_cache(maxsize=4)
def _test_half(text: str, seed: int) -> Examples:
    data = Data.model_validate_json(text)
    dataset = deal_out(data, seed).dataset
    if dataset.test_x is None or dataset.test_y is None:
        raise FieldError("data.name", data.name, "has no test half to measure on")
    return Examples(dataset.test_x, dataset.test_y, dataset.classes)
