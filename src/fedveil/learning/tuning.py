"""Changes to a model of any name before it is trained: weights from a file, frozen parts, adapters."""

from torch import nn

from fedveil.checks import Count
from fedveil.errors import FieldError
from fedveil.learning.frozen import freeze, require_parts, split
from fedveil.learning.lora import lora as with_adapters
from fedveil.learning.weights import WeightsFile, load_weights

_KEPT = "_fedveil_weights"  # under which a model keeps what is known of its file


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
    rank: Count = 4,
    cached: bool = False,
) -> nn.Module:
    """Prepare a model for training: keys of ``[model]`` for every model that has no such key itself.

    Parameters
    ----------
    model : torch.nn.Module
        As its factory made it.
    weights : str
        A file with a state dictionary (``torch.save`` or safetensors; nothing in it is run). It is taken as public: no
        guarantee covers records that it was trained on.
    sha256 : str
        How the file's SHA-256 must begin, at least 8 digits.
    source, licence : str
        Of the weights, for the summary.
    anew : tuple of str
        Parts that the file's weights are not for, such as a head for other classes.
    train : tuple of str
        The only parts that are trained whole; everything, if neither this nor `lora` is said.
    lora : tuple of str
        Layers with low-rank adapters, by their names or the ends of these; everything else but `train` is frozen.
    rank : int
        Of the adapters.
    cached : bool
        Compute what comes before the first trained part once an example, each alone. The model is an ``nn.Sequential``.

    Raises
    ------
    FieldError
        For names that the model does not have, or a file that does not fit.
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
    if cached and not (lora or train):
        raise FieldError(
            "cached", True, "needs a frozen part: say in train or lora what is trained"
        )
    if known is not None:
        keep(model, known)
    return model


def front_of(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the part of a ``cached`` model that gives features, and the part that is trained on them."""
    try:
        front, rest = split(model)  # type: ignore[arg-type]
    except FieldError as error:
        raise FieldError("cached", True, error.accepted) from error
    known = weights_in(model)
    if known is not None:
        keep(rest, known)
    return front, rest


def keep(model: nn.Module, known: WeightsFile) -> None:
    """Attach the description of its weights' file to a model."""
    object.__setattr__(model, _KEPT, known)


def weights_in(model: nn.Module) -> WeightsFile | None:
    """Return the description of the file that a model's weights are from."""
    return getattr(model, _KEPT, None)
