"""Preparation of any model for fine-tuning: weights from a file, frozen parts, adapters."""

from torch import nn

from fedveil.checks import Count
from fedveil.errors import FieldError
from fedveil.learning.frozen import freeze, require_parts, split
from fedveil.learning.lora import lora as with_adapters
from fedveil.learning.weights import WeightsFile, load_weights

_RANK = 4  # of adapters, if nothing else is said
_KEPT = "_fedveil_weights"  # attribute in which a model keeps the description of its file


def tuned(
    model: nn.Module,
    *,
    weights: str = "",
    sha256: str = "",
    source: str = "",
    licence: str = "",
    anew: tuple[str, ...] = (),
    train: tuple[str, ...] = (),
    lora: tuple[str, ...] = (),
    rank: Count = _RANK,
    cached: bool = False,
) -> nn.Module:
    """Prepare a model for fine-tuning. The options are keys of ``[model]``, for models without own keys of these names.

    Parameters
    ----------
    model : torch.nn.Module
        Model from its factory.
    weights : str
        File with a state dictionary (``torch.save`` or safetensors; nothing in it is run). It counts as public: no
        guarantee covers the records on which it was trained.
    sha256 : str
        Required beginning of the file's SHA-256, at least 8 digits.
    source, licence : str
        Source and licence of the weights, for the summary.
    anew : tuple of str
        Parts that keep their new weights in place of the file's, such as a head for other classes.
    train : tuple of str
        Parts that are trained; all others are frozen or, with `lora`, get adapters. Without this and `lora`, everything
        is trained.
    lora : tuple of str
        Layers with low-rank adapters, by names or ends of names; everything else but `train` is frozen.
    rank : int
        Rank of the adapters.
    cached : bool
        Whether the parts before the first trained one are computed only once for each example. The model must be an
        ``nn.Sequential``.

    Raises
    ------
    FieldError
        For names that the model does not have, or a file of another architecture.
    """
    if not weights:
        given: dict[str, object] = {
            "sha256": sha256,
            "source": source,
            "licence": licence,
            "anew": anew,
        }
        for key, value in given.items():
            if value:
                raise FieldError(
                    key, value, "is of a file of weights: set weights, or leave it out"
                )
    known: WeightsFile | None = None
    if weights:
        known = load_weights(
            model, weights, anew=anew, sha256=sha256, source=source, licence=licence
        )
    if lora:
        try:
            model = with_adapters(model, rank, lora, train=train)
        except FieldError as error:
            field = "lora" if error.field == "targets" else error.field
            raise FieldError(field, error.value, error.accepted) from error
    elif train:
        model = freeze(model, but=require_parts(model, train, "train"))
    if rank != _RANK and not lora:
        raise FieldError("rank", rank, "is of adapters: name their layers in lora, or leave it out")
    if cached and not (lora or train):
        raise FieldError(
            "cached", True, "needs a frozen part: say in train or lora what is trained"
        )
    if known is not None:
        keep(model, known)
    return model


def front_of(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Split a ``cached`` model into the frozen part that computes features, and the trained part."""
    try:
        front, rest = split(model)  # type: ignore[arg-type]
    except FieldError as error:
        raise FieldError("cached", True, error.accepted) from error
    known = weights_in(model)
    if known is not None:
        keep(rest, known)
    return front, rest


def keep(model: nn.Module, known: WeightsFile) -> None:
    """Store the description of a weights file in the model that was loaded from it."""
    object.__setattr__(model, _KEPT, known)


def weights_in(model: nn.Module) -> WeightsFile | None:
    """Return the description of the file from which a model was loaded; None without one."""
    return getattr(model, _KEPT, None)
