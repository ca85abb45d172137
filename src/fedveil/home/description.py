"""Description of a released model (model.json): network, inputs, classes, version and promise."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from fedveil.data.sets import DataSet
from fedveil.errors import FieldError, nearest, require_a, require_choice, require_count
from fedveil.learning.losses import LossFunction, evaluating, outputs_of
from fedveil.learning.objective import OutputMeaning, output_meaning
from fedveil.reading import json_of

DESCRIPTION = "model.json"
FORMAT = "fedveil model 1"
TASKS = ("classification", "segmentation", "regression")
REMOVABLE = "reproducible, not for deployment"


@dataclass(frozen=True, kw_only=True)
class Description:
    """Description of a released model: its inputs, the meaning of its outputs, and the promise of its run.

    Only values listed in `read_off` come from private data.

    Attributes
    ----------
    network : str
        Name in `fedveil.learning.MODELS`, or ``"package.module:Net"`` for your own network.
    options : mapping
        Options of the network.
    input_shape : tuple of int
        Shape of one example.
    outputs : int
        Number of classes, or of targets of a regression.
    task : {"classification", "segmentation", "regression"}
        Kind of prediction.
    meaning : str
        Meaning of the outputs, see `fedveil.learning.objective.output_meaning`.
    classes : tuple of str
        Names of the classes, in the order of the outputs.
    positive : str
        Positive class, if there are two.
    positive_named : bool
        Whether the user named the positive class; otherwise it is the second.
    inputs : mapping
        How a row of a file becomes an example: ``kind`` and its constants; empty if it is not known.
    hypotheses : int
        Number of models in the file; each client used the one with the least loss on its data.
    digest : str
        SHA-256 of the file with the weights.
    promise : mapping
        ``text`` (unit, relation, trust, total), ``parties`` with the same for each party, ``conditions``, ``source``.
    method, data, licence, note, version : str
        Method, data set, licence of the data, caveat, and FedVeil's version of the run.
    read_off : tuple of str
        Keys of the configuration whose values were computed from the private data, such as ranges found by `fedveil
        init`. No promise covers these values.
    """

    network: str
    options: Mapping[str, Any]
    input_shape: tuple[int, ...]
    outputs: int
    task: str
    meaning: str
    classes: tuple[str, ...] = ()
    positive: str = ""
    positive_named: bool = False
    inputs: Mapping[str, Any] = field(default_factory=dict)
    hypotheses: int = 1
    digest: str = ""
    promise: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    data: str = ""
    licence: str = ""
    note: str = ""
    version: str = ""
    read_off: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that contradict each other."""
        require_choice("task", self.task, TASKS)
        require_choice("meaning", self.meaning, get_args(OutputMeaning))
        require_count("outputs", self.outputs)
        require_count("hypotheses", self.hypotheses)
        for size in self.input_shape:
            require_count("input_shape", size)
        if self.task != "regression" and len(self.classes) < 2:
            raise FieldError(
                "classes",
                list(self.classes),
                "must name at least two classes, in the outputs' order",
            )
        if len(set(self.classes)) != len(self.classes):
            raise FieldError("classes", list(self.classes), "must name each class once")
        if self.positive:
            require_choice("positive", self.positive, self.classes)

    @property
    def removable(self) -> bool:
        """Whether the noise is reproducible: the run's seed then suffices to remove it."""
        return bool(self.promise.get("source", "") == REMOVABLE)

    def to_text(self) -> str:
        """Return the description as the text of model.json."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def read(cls, file: Path) -> "Description":
        """Read a description from its file.

        Raises
        ------
        FieldError
            If the file is not a description, or contradicts itself.
        """
        try:
            values = json_of(file.read_bytes())
        except (OSError, ValueError) as error:
            raise FieldError(
                "RUN", str(file), f"cannot be read ({error}): restore the file"
            ) from error
        require_a("RUN", values, Mapping, f"{file.name} must be a table")
        if values.get("format") != FORMAT:
            accepted = f"{file.name} has another format than {FORMAT!r}: read it with the version that wrote it"
            raise FieldError("format", values.get("format"), accepted)
        known = {f.name: f for f in fields(cls)}
        for name in values:
            if name != "format" and name not in known:
                raise FieldError(f"{file.name}: {name}", values[name], nearest(name, known))
        for name in ("network", "options", "input_shape", "outputs", "task", "meaning"):
            if name not in values:
                raise FieldError(f"{file.name}: {name}", None, "the file lacks it: restore it")
        given = {name: values[name] for name in known if name in values}
        for name in ("input_shape", "classes", "read_off"):
            if name in given:
                require_a(f"{file.name}: {name}", given[name], list, "must be a list")
                given[name] = tuple(given[name])
        for name in ("options", "inputs", "promise"):
            if name in given:
                require_a(f"{file.name}: {name}", given[name], Mapping, "must be a table")
        for name in (
            "network",
            "positive",
            "digest",
            "method",
            "data",
            "licence",
            "note",
            "version",
        ):
            if name in given:
                require_a(f"{file.name}: {name}", given[name], str, "must be a text")
        for texts in ("classes", "read_off"):
            for one in given.get(texts, ()):
                require_a(f"{file.name}: {texts}", one, str, "must be texts")
        return cls(**given)

    def of(self, weights: bytes, hypotheses: int) -> "Description":
        """Return the description with the digest of these weights and their number of hypotheses."""
        return replace(self, digest=hashlib.sha256(weights).hexdigest(), hypotheses=hypotheses)

    def promising(self, summary: Mapping[str, Any]) -> "Description":
        """Return the description with the promise, method and version from a run's summary."""
        version = str(summary.get("versions", {}).get("fedveil", ""))
        return replace(
            self,
            promise=promise_values(summary),
            method=str(summary.get("method", "")),
            version=version,
        )


def describe(
    module: nn.Module,
    network: str,
    options: Mapping[str, Any],
    dataset: DataSet,
    loss: str | LossFunction,
) -> Description:
    """Describe a network and its data set by shapes, names and declared constants, without values of the data.

    Parameters
    ----------
    module : torch.nn.Module
        Network; it is called once with zeros, to find the shape of its outputs.
    network, options
        Name and options by which the network is built.
    dataset : DataSet
        Data set that was distributed.
    loss : str or callable
        Training loss.
    """
    some = next(module.parameters())
    dtype = some.dtype if dataset.x.is_floating_point() else dataset.x.dtype
    example = torch.zeros(1, *dataset.input_shape, dtype=dtype)
    with evaluating(module), torch.no_grad():
        shape = tuple(outputs_of(module(example.to(some.device))).shape)
    return Description(
        network=network,
        options=dict(options),
        input_shape=dataset.input_shape,
        outputs=dataset.outputs,
        task=dataset.task,
        meaning=output_meaning(loss, shape, dataset.y[:1]),
        classes=dataset.names(),
        positive=dataset.names()[1] if dataset.classes == 2 else "",
        inputs=dict(dataset.inputs),
        data=dataset.name,
        licence=dataset.licence,
    )


def promise_values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the promises in a run's summary as sentences, with their conditions."""
    texts: dict[str, str] = {}
    conditions: list[str] = []
    reasons: list[str] = []
    guarantees: Mapping[str, Mapping[str, Any]] = summary.get("guarantees", {})
    for party, values in guarantees.items():
        texts[party] = str(values.get("text", "none"))
        conditions += values.get("conditions", ())
        if values.get("reason"):
            reasons.append(str(values["reason"]))
    return {
        "text": str(summary.get("guarantee", "none")),
        "parties": texts,
        "conditions": list(dict.fromkeys(conditions)),
        "reason": reasons[0] if reasons else "",
        "trust": str(summary.get("trust", "")),
        "source": str(summary.get("source", "")),
    }
