"""A released model for predictions, loaded from the folder of a run or of an export without pickle."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

from fedveil.errors import FieldError, require_a, require_count
from fedveil.home.description import DESCRIPTION, Description
from fedveil.home.reading import examples_of
from fedveil.learning.inputs import Inputs
from fedveil.learning.losses import evaluating, outputs_of
from fedveil.learning.models import MODELS, build_model

WEIGHTS = "model.safetensors"
HYPOTHESIS = "hypothesis."
_AT_ONCE = 512


@dataclass(frozen=True)
class Answer:
    """Predictions of a model for named examples.

    Attributes
    ----------
    names : tuple of str
        Name of each example: the number of its row (from 1), or the name of its image file.
    labels : ndarray
        [N], names of classes, or numbers in the target's units.
    probabilities : ndarray or None
        [N, C], probabilities in the order of `classes`; None for a regression.
    classes : tuple of str
        Names of the classes.
    """

    names: tuple[str, ...]
    labels: NDArray[Any]
    probabilities: NDArray[np.float64] | None
    classes: tuple[str, ...]


class ReleasedModel:
    """Model of a finished run, with its description and promise.

    Attributes
    ----------
    module : torch.nn.Module
        Network with the released weights, in evaluation mode.
    about : Description
        Inputs, classes, version and promise of the model.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> folder = mkdtemp() + "/run"
    >>> digits = {"data": {"name": "digits", "clients": 4}, "model": {"name": "logistic"}}
    >>> _ = fv.runs.run(fv.config.parse({"name": "mine", "rounds": 1, **digits}), folder)
    >>> mine = fv.load(folder)
    >>> mine.classes[:3], mine.promise
    (('0', '1', '2'), 'none')
    >>> mine.predict_proba(torch.zeros(2, 1, 8, 8)).shape
    (2, 10)
    """

    def __init__(self, module: nn.Module, about: Description) -> None:
        require_a(
            "module", module, nn.Module, "must be a torch.nn.Module: fv.load(folder) makes both"
        )
        require_a(
            "about",
            about,
            Description,
            "must be the Description of a run: fv.load(folder) makes both",
        )
        self.module, self.about = module.eval(), about

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the columns of `predict_proba`; empty for a regression."""
        return self.about.classes

    @property
    def positive(self) -> str:
        """Positive class of two; "" for other models."""
        return self.about.positive

    @property
    def promise(self) -> str:
        """Promise of the run in words: unit, relation, trust and total."""
        return str(self.about.promise.get("text", "none"))

    def __repr__(self) -> str:
        what = ", ".join(self.classes) or f"{self.about.outputs} numbers"
        return f"ReleasedModel({self.about.network}: {what}; {self.promise})"

    def outputs(self, x: Any) -> Tensor:
        """Compute the network's own outputs for examples [N, *input_shape], scaled as in training.

        Raises
        ------
        FieldError
            For another shape, or values that are not finite.
        """
        examples = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        wanted = self.about.input_shape
        if tuple(examples.shape[1:]) != wanted or not len(examples):
            raise FieldError(
                "x",
                tuple(examples.shape),
                f"must be [N, {', '.join(map(str, wanted))}], N at least 1",
            )
        if examples.is_floating_point() and not bool(examples.isfinite().all()):
            raise FieldError("x", "NaN or infinity", "must be finite: remove the row or fill it in")
        inputs, parts = Inputs.of(self.module), []
        with evaluating(self.module), torch.no_grad():
            for start in range(0, len(examples), _AT_ONCE):
                parts.append(outputs_of(self.module(inputs(examples[start : start + _AT_ONCE]))))
        return torch.cat(parts).to(torch.float64)

    def predict_proba(self, x: Any) -> NDArray[np.float64]:
        """Predict the probabilities [N, C] of the classes (for pixels [N, C, H, W]), in the order of `classes`.

        Raises
        ------
        FieldError
            If the model is a regression.
        """
        if self.about.meaning == "values" or self.about.task == "regression":
            raise FieldError("predict_proba", self.about.task, "is of classes: use predict")
        outputs, meaning = self.outputs(x), self.about.meaning
        if meaning in ("classes", "soft classes"):
            return np.asarray(outputs.softmax(1).numpy())
        if meaning == "logits":
            outputs = outputs.sigmoid()
        yes = outputs.reshape(len(outputs), -1)
        if yes.shape[1] == 1:
            yes = torch.cat([1 - yes, yes], 1)
        return np.asarray(yes.numpy())

    def predict(self, x: Any, threshold: float | None = None) -> NDArray[Any]:
        """Predict the name of the likeliest class of each example, or numbers in the target's units.

        Parameters
        ----------
        x : array or Tensor
            [N, *input_shape], scaled as in training.
        threshold : float, optional
            With two classes: least probability at which the positive class is predicted. Default: the likelier class is
            predicted.
        """
        if self.about.task == "regression":
            _require_no(threshold, "the model predicts numbers")
            return self._in_units(self.outputs(x).numpy())
        return self._named(self.predict_proba(x), threshold)

    def read(
        self,
        path: str | Path,
        *,
        reference: str | Path | None = None,
        threshold: float | None = None,
    ) -> Answer:
        """Predict for the rows of a table, for image files, or for the array ``x`` of an npz file.

        Parameters
        ----------
        path : path
            File or folder; a table must have the run's input columns.
        reference : path, optional
            Table with the site's own rows, if each site scaled columns by its own rows in training.
        threshold : float, optional
            As for `predict`.
        """
        x, names = examples_of(
            self.about, Path(path), None if reference is None else Path(reference)
        )
        if self.about.task == "regression":
            _require_no(threshold, "the model predicts numbers")
            return Answer(tuple(names), self._in_units(self.outputs(x).numpy()), None, ())
        if self.about.task == "segmentation":
            accepted = "it names a class a pixel: use fedveil apply, or ReleasedModel.predict"
            raise FieldError("DATA", str(path), accepted)
        probabilities = self.predict_proba(x)
        return Answer(
            tuple(names), self._named(probabilities, threshold), probabilities, self.classes
        )

    def _named(self, probabilities: NDArray[np.float64], threshold: float | None) -> NDArray[Any]:
        chosen = probabilities.argmax(1)
        if threshold is not None:
            if len(self.classes) != 2 or probabilities.ndim != 2:
                raise FieldError(
                    "threshold", threshold, f"is for two classes, and there are {len(self.classes)}"
                )
            if not 0 < threshold < 1:
                raise FieldError(
                    "threshold", threshold, "must be a probability above 0 and below 1"
                )
            positive = self.classes.index(self.positive)
            chosen = np.where(probabilities[:, positive] >= threshold, positive, 1 - positive)
        return np.asarray(np.array(self.classes)[chosen])

    def _in_units(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert outputs to the target's own units, if its range was declared."""
        if outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        low, high = self.about.inputs.get("target_range") or (0.0, 1.0)
        return np.asarray(low + (high - low) * outputs)


def load(
    run: str | Path,
    *,
    model: nn.Module | Callable[[], nn.Module] | str | None = None,
    hypothesis: int | None = None,
    about: Description | None = None,
) -> ReleasedModel:
    """Load the model of a finished run, of a run in a comparison, or of an export. No pickle is read.

    Parameters
    ----------
    run : path
        Folder of the run.
    model : torch.nn.Module, callable or str, optional
        Your own network, a function that builds it, or its name, ``"package.module:Net"``. A name in the file is never
        imported, so you have to give your own network here.
    hypothesis : int, optional
        Index of the model, from 0, if the run trained several.
    about : Description, optional
        Description for a folder without ``model.json``, such as that of a deployed server.

    Raises
    ------
    FieldError
        If something is missing (the text names it), or weights do not fit the network or its description.

    Examples
    --------
    >>> try:
    ...     fv.load("runs/nothing")
    ... except fv.FieldError as error:
    ...     print(error.field)
    RUN
    """
    require_a("run", run, (str, Path), "must be the path of a run's folder")
    folder = Path(run)
    weights_of(folder)
    given = description_in(folder) if about is None else about
    arrays = arrays_of(folder, given, hypothesis)
    module = _built(given, model)
    _put(module, arrays, folder)
    return ReleasedModel(module, given)


def arrays_of(folder: Path, about: Description, hypothesis: int | None = None) -> dict[str, Tensor]:
    """Read the weights of one model in a folder, and check them against the description.

    Raises
    ------
    FieldError
        If they differ from the description, or there are several models and none is chosen.
    """
    weights = weights_of(folder)
    if about.digest and about.digest != hashlib.sha256(weights).hexdigest():
        accepted = f"is not the file that {DESCRIPTION} describes: restore both"
        raise FieldError("RUN", str(folder / WEIGHTS), accepted)
    return _one_of(_arrays_in(folder, weights), hypothesis)


def weights_of(folder: Path) -> bytes:
    """Read the bytes of a folder's weights.

    Raises
    ------
    FieldError
        If there are no weights; the text names what the folder lacks.
    """
    file = folder / WEIGHTS
    if file.is_file():
        return file.read_bytes()
    if not folder.is_dir():
        raise FieldError("RUN", str(folder), "is no folder: give that of a finished run")
    why = f"lacks {WEIGHTS}: finish the run with `fedveil run {folder} --resume`"
    cells = sorted(f"cells/{file.parent.name}" for file in folder.glob(f"cells/*/{WEIGHTS}"))
    if (folder / "model.pt").is_file():
        why = "holds model.pt alone, a pickle, which is never read: export it again with --to safetensors"
    elif cells:
        why = f"holds several runs; name one: {', '.join(cells[:8])}"
    elif (folder / "cells").is_dir():
        why = "holds runs played side by side, which keep no model: fedveil run CELL/config.toml"
    raise FieldError("RUN", str(folder), why)


def description_in(folder: Path) -> Description:
    """Read the folder's ``model.json``.

    Raises
    ------
    FieldError
        If there is none; the text names the facts that are then missing.
    """
    file = folder / DESCRIPTION
    if not file.is_file():
        lacks = f"lacks {DESCRIPTION}: network, input columns and their scaling, classes, positive class, promise"
        way = "`fedveil export RUN --to safetensors` describes an earlier run anew where its data are; for a "
        way += "server's folder give --config FILE, whose [data] and [model] say it (in Python, about=)"
        raise FieldError("RUN", str(folder), f"{lacks}. {way}")
    return Description.read(file)


def hypotheses_in(arrays: Mapping[str, Tensor]) -> int:
    """Count the models that a file of weights holds."""
    numbers = {name.split(".")[1] for name in arrays if name.startswith(HYPOTHESIS)}
    return max(1, len(numbers))


def _arrays_in(folder: Path, weights: bytes) -> dict[str, Tensor]:
    try:
        return tensors_of(weights)
    except SafetensorError as error:
        raise FieldError(
            "RUN", str(folder / WEIGHTS), f"cannot be read ({error}): restore the file"
        ) from error


def _one_of(arrays: dict[str, Tensor], hypothesis: int | None) -> dict[str, Tensor]:
    count = hypotheses_in(arrays)
    if count == 1:
        if hypothesis:
            raise FieldError("hypothesis", hypothesis, "there is one model: leave it out")
        return arrays
    if hypothesis is None:
        accepted = f"the run trained {count} models, and each site used the one that fitted it: 0 to {count - 1}"
        raise FieldError("hypothesis", None, accepted)
    if require_count("hypothesis", hypothesis, least=0) >= count:
        raise FieldError("hypothesis", hypothesis, f"there are 0 to {count - 1}")
    head = f"{HYPOTHESIS}{hypothesis}."
    return {
        name.removeprefix(head): value for name, value in arrays.items() if name.startswith(head)
    }


def _built(
    about: Description, model: nn.Module | Callable[[], nn.Module] | str | None
) -> nn.Module:
    if model is not None and not isinstance(model, str):
        module = model if isinstance(model, nn.Module) else model()
        require_a(
            "model", module, nn.Module, "must be a torch.nn.Module, or a function that builds one"
        )
        return module
    name = about.network if model is None else model
    if model is None and name not in MODELS:
        accepted = (
            "is a module of somebody's own, whose code is not imported on a file's word: give it, "
        )
        accepted += "fv.load(run, model=Net()) or --module package.module:Net"
        raise FieldError("network", about.network, accepted)
    return build_model(
        name, input_shape=about.input_shape, outputs=about.outputs, seed=0, **dict(about.options)
    )


def _put(module: nn.Module, arrays: Mapping[str, Tensor], folder: Path) -> None:
    """Load weights into a network; refuse missing, wrongly shaped or infinite ones."""
    own = module.state_dict()
    lacking = [name for name in own if name not in arrays]
    unknown = [name for name in arrays if name not in own]
    if lacking or unknown:
        accepted = f"does not fit the network: it lacks {_few(lacking)}, and the network has no {_few(unknown)}"
        if lacking and not unknown:
            accepted = f"lacks {_few(lacking)}: sites keep statistics of their own, and a server no frozen weights"
        raise FieldError("RUN", str(folder / WEIGHTS), accepted)
    for name, value in arrays.items():
        if value.shape != own[name].shape:
            raise FieldError(name, tuple(value.shape), f"the network's is {tuple(own[name].shape)}")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise FieldError(name, "NaN or infinity", "the run diverged: its model answers nothing")
    module.load_state_dict(dict(arrays))


def _few(names: Sequence[str]) -> str:
    shown = list(names[:5])
    if len(names) > 5:
        shown.append("...")
    return ", ".join(shown) or "nothing"


def _require_no(threshold: float | None, why: str) -> None:
    if threshold is not None:
        raise FieldError("threshold", threshold, f"{why}: leave it out")
