"""Export of a released model: weights, model.json, and a card with the front matter of Hugging Face's hub."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedveil.errors import FieldError, cleaned, require_choice
from fedveil.home.description import DESCRIPTION, Description
from fedveil.home.released import WEIGHTS, arrays_of
from fedveil.registry import placed

CARD = "README.md"
TORCH = "model.pt"
KINDS = ("safetensors", "pt")
_PIPELINES = {
    ("table", "classification"): "tabular-classification",
    ("table", "regression"): "tabular-regression",
    ("pictures", "classification"): "image-classification",
    ("pictures", "segmentation"): "image-segmentation",
}


def export(
    run: str | Path,
    out: str | Path,
    *,
    to: str = "safetensors",
    about: Description,
    hypothesis: int | None = None,
) -> list[Path]:
    """Write a released model to a folder for others, without measured figures and without a threshold.

    The card lists the configuration keys whose values were computed from the private data.

    Parameters
    ----------
    run : path
        Folder of a finished run.
    out : path
        New or empty folder.
    to : {"safetensors", "pt"}
        Format of the weights. ``"pt"``: a dictionary of tensors by `torch.save`, for programs that read nothing else;
        FedVeil never reads it.
    about : Description
        Description of the model: `fedveil.home.Description.read` of the run's ``model.json``.
    hypothesis : int, optional
        Index of the model, if the run trained several.

    Returns
    -------
    list of Path
        Written files.
    """
    require_choice("--to", to, KINDS)
    where = Path(out)
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise FieldError("--out", str(where), "is not empty: give a new folder")
    arrays = arrays_of(Path(run), about, hypothesis)
    content = save(arrays, metadata={"format": "pt"}) if to == "safetensors" else _pickled(arrays)
    _, module, attribute = placed(about.network)
    network = (
        f"{module}:{attribute}" if attribute else about.network
    )  # without the folder where it lies here
    handed = replace(about, network=network).of(content, 1)
    where.mkdir(parents=True, exist_ok=True)
    name = WEIGHTS if to == "safetensors" else TORCH
    files = {
        name: content,
        DESCRIPTION: handed.to_text().encode(),
        CARD: card(handed, name).encode(),
    }
    for file, written in files.items():
        (where / file).write_bytes(written)
    return [where / file for file in files]


def _pickled(arrays: dict[str, Tensor]) -> bytes:
    """Write tensors as `torch.save` does; ``torch.load(file, weights_only=True)`` reads them without running code."""
    stream = BytesIO()
    torch.save({name: value.clone() for name, value in arrays.items()}, stream)
    return stream.getvalue()


def card(about: Description, weights: str) -> str:
    """Make the model card: front matter for the hub, then the facts that a reader needs before using the model."""
    return "\n".join([*_front(about), "", *_body(about, weights), ""])


def _front(about: Description) -> Iterator[str]:
    tags = ["federated-learning"]
    if about.promise.get("text", "none").startswith(("formal", "conditional")):
        tags.append("differential-privacy")
    yield "---"
    yield "library_name: fedveil"
    yield "license: other"
    pipeline = _PIPELINES.get((str(about.inputs.get("kind", "")), about.task))
    if pipeline:
        yield f"pipeline_tag: {pipeline}"
    yield "tags:"
    yield from (f"- {tag}" for tag in tags)
    yield "---"


def _body(about: Description, weights: str) -> Iterator[str]:
    promise = about.promise
    yield "# A model trained with FedVeil"
    yield ""
    yield "## What is promised, and to whom"
    yield ""
    yield f"**{_plain(promise.get('text', 'none'))}**"
    yield ""
    if promise.get("text", "none") == "none":
        yield "Nothing protects those whose data it was trained on: the model may tell who they are and what they have."
        yield ""
    if promise.get("reason"):
        yield f"Heuristic: no epsilon holds, because {_plain(promise['reason'])}."
        yield ""
    parties = promise.get("parties", {})
    yield from (f"* {_plain(party)}: {_plain(text)}" for party, text in parties.items())
    yield from (f"* condition: {_plain(condition)}" for condition in promise.get("conditions", ()))
    if about.removable and promise.get("text", "none") != "none":
        yield "* **not for deployment**: the noise was drawn from a seed, and whoever knows it takes the noise off"
    if about.read_off:
        keys = ", ".join(map(_plain, about.read_off))
        yield f"* **read off the private data**: {keys}; no noise covers their values below"
    yield ""
    yield "## What it takes and what it answers"
    yield ""
    yield f"* network `{_plain(about.network)}`, input {list(about.input_shape)}, {about.outputs} outputs"
    if about.classes:
        yield f"* classes, in the order of the outputs: {', '.join(map(_plain, about.classes))}"
    if about.positive:
        why = (
            "named by its authors"
            if about.positive_named
            else "the second of the two; nobody named it"
        )
        yield f"* positive class: {_plain(about.positive)} ({why})"
    if about.inputs.get("target_range"):
        low, high = about.inputs["target_range"]
        yield f"* target `{_plain(about.inputs['target'])}`, declared from {low:g} to {high:g}"
    yield f"* trained with FedVeil {_plain(about.version)}, method {_plain(about.method)}, data: {_plain(about.data)}"
    if about.licence:
        yield f"* licence of the data: {_plain(about.licence)}"
    if about.note:
        yield f"* {_plain(about.note)}"
    yield ""
    yield from _columns(about)
    yield from _asking(weights)
    yield "## What is not here"
    yield ""
    yield "* Figures of quality. Those of the run were measured without noise on people whom no promise covers."
    yield "* A threshold. The class with the larger probability is named; where to cut is for whoever uses the answer."
    yield "* A licence of the model, and who may use it for what: its authors say so (`license` above)."
    yield "* Any claim that it is fit to decide about a patient."


def _columns(about: Description) -> Iterator[str]:
    columns: Sequence[Sequence[object]] = about.inputs.get("columns", ())
    if not columns:
        return
    gaps = about.inputs.get("missing", {})
    whose = "read off the private data" if "data.columns" in about.read_off else "declared"
    yield f"| column | {whose} | where it is missing |"
    yield "|---|---|---|"
    for name, declared in columns:
        gap = json.dumps(gaps[name]) if name in gaps else "refused"
        said = json.dumps(declared) if declared else "as it is"
        yield f"| {_plain(name)} | {_plain(said)} | {_plain(gap)} |"
    yield ""
    scale, outside = _plain(about.inputs.get("scale", "")), _plain(about.inputs.get("outside", ""))
    yield f"Scaling: {scale}; outside a declared range: {outside}."
    yield ""


def _asking(weights: str) -> Iterator[str]:
    yield "## How to ask it"
    yield ""
    if weights == TORCH:
        yield "    state = torch.load('model.pt', weights_only=True)    # FedVeil itself reads safetensors alone"
    else:
        yield "    fedveil predict FOLDER NEW.csv"
        yield ""
        yield "    model = fv.load('FOLDER')"
        yield "    model.predict_proba(x)"
    yield ""


def _plain(text: object) -> str:
    """Escape other people's text for Markdown: one line, without marks of tables, links or tags."""
    shown = cleaned(text, 2000)
    for sign in "\\`*_[]|#":
        shown = shown.replace(sign, f"\\{sign}")
    return shown.replace("<", "&lt;").replace(">", "&gt;")
