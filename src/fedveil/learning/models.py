"""Small models by name; their initial weights depend on a seed alone."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, nearest, require_choice, require_count
from fedveil.layout import Layout
from fedveil.learning.scaled_inputs import SCALINGS, ScaledInputs
from fedveil.learning.tuning import front_of, tuned
from fedveil.learning.unet import sharpness, unet
from fedveil.mechanisms.source import keyed_seed
from fedveil.registry import Registry

Parts = list[tuple[str, nn.Module]]

MOST_PARAMETERS = 1_000_000_000  # most parameters of a model of the registry
_GIVEN = "Parameters named input_shape and outputs are given; others are keys of [model], or have defaults"

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
}


def logistic(
    input_shape: Sequence[int],
    outputs: int,
    *,
    bias: bool = True,
    inputs: str = "given",
) -> nn.Module:
    """Build logistic or linear regression: one dense layer on the flattened input.

    Options of `inputs`: ``"given"`` changes nothing; ``"centred"`` subtracts one half, for inputs between 0 and 1.
    ``"standardised"`` subtracts each example's own mean and divides by its own deviation. Both help under noise, and
    cost no privacy.
    """
    dense = nn.Linear(prod(input_shape), outputs, bias=bias)
    return _stack([("flatten", nn.Flatten()), *_scaled(inputs), ("dense", dense)])


def mlp(
    input_shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] = (64,),
    activation: str = "relu",
) -> nn.Module:
    """Build a multilayer perceptron with the given hidden sizes, and ``"relu"`` or ``"tanh"`` between the layers."""
    require_choice("activation", activation, ("relu", "tanh"))
    sizes = [prod(input_shape)]
    for size in hidden:
        sizes.append(require_count("hidden", size))
    parts: Parts = [("flatten", nn.Flatten())]
    for i, (before, after) in enumerate(pairwise(sizes), start=1):
        parts.append((f"dense{i}", nn.Linear(before, after)))
        parts.append((f"act{i}", ACTIVATIONS[activation]()))
    parts.append((f"dense{len(sizes)}", nn.Linear(sizes[-1], outputs)))
    return _stack(parts)


def small_cnn(
    input_shape: Sequence[int],
    outputs: int,
    *,
    channels: Sequence[int] = (16, 32),
    dense: int = 64,
    activation: str = "tanh",
) -> nn.Module:
    """Build a CNN for small images (8x8, 28x28): 3x3 convolutions with average pooling, then two dense layers.

    Gradient inversion and layer scores work best with a twice differentiable activation: any but ``"relu"``.
    """
    make = ACTIVATIONS[require_choice("activation", activation, ACTIVATIONS)]
    before, height, width = image_shape(input_shape, 1 << len(channels))
    parts: Parts = []
    for i, after in enumerate(channels, start=1):
        convolution = nn.Conv2d(before, require_count("channels", after), 3, padding=1)
        parts.append((f"conv{i}", convolution))
        parts.append((f"act{i}", make()))
        parts.append((f"pool{i}", nn.AvgPool2d(2)))
        before = after
        height //= 2
        width //= 2
    hidden = nn.Linear(before * height * width, require_count("dense", dense))
    parts.append(("flatten", nn.Flatten()))
    parts.append(("dense1", hidden))
    parts.append(("act", make()))
    parts.append(("dense2", nn.Linear(dense, outputs)))
    return _stack(parts)


def lenet(
    input_shape: Sequence[int],
    outputs: int,
    *,
    channels: int = 12,
    activation: str = "sigmoid",
) -> nn.Module:
    """Build the LeNet that gradient inversion usually attacks: three 5x5 convolutions and a dense layer.

    The first two convolutions have stride 2. Source: Zhu, Liu and Han 2019 (arXiv 1906.08935), section 4. Initial
    weights are PyTorch's.
    """
    make = ACTIVATIONS[require_choice("activation", activation, ACTIVATIONS)]
    before, height, width = image_shape(input_shape, 4)
    parts: Parts = []
    for i, stride in enumerate((2, 2, 1), start=1):
        after = require_count("channels", channels)
        parts.append((f"conv{i}", nn.Conv2d(before, after, 5, stride=stride, padding=2)))
        parts.append((f"act{i}", make()))
        before = after
        height = -(-height // stride)
        width = -(-width // stride)
    parts.append(("flatten", nn.Flatten()))
    parts.append(("dense", nn.Linear(before * height * width, outputs)))
    return _stack(parts)


def alzheimer_cnn(
    input_shape: Sequence[int],
    outputs: int,
    *,
    dropout: float = 0.1,
    init: str = "glorot",
) -> nn.Module:
    """Build the CNN of the metric-privacy paper for an image of at least 18x18 (6,517,476 parameters at 1x128x128).

    It has 3x3 convolutions of 32, 64 and 128 channels, then dense layers of 64, 32 and the outputs. The paper prints no
    kernel size; 3x3 without padding ("valid") is our assumption. Pooling comes before ReLU: the two commute, and ReLU
    then has a quarter of the work. Initial weights are those of Keras (Glorot uniform, biases 0), with which it learns
    faster than with ``init="torch"``.
    """
    require_choice("init", init, ("glorot", "torch"))
    channels, height, width = image_shape(input_shape, 18)
    for pooling in (2, 2, 1):
        height = (height - 2) // pooling
        width = (width - 2) // pooling
    if isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise FieldError("dropout", dropout, "must be a probability of at least 0 and below 1")
    model = _stack(
        [
            ("conv1", nn.Conv2d(channels, 32, 3)),
            ("pool1", nn.MaxPool2d(2)),
            ("relu1", nn.ReLU()),
            ("conv2", nn.Conv2d(32, 64, 3)),
            ("pool2", nn.MaxPool2d(2)),
            ("relu2", nn.ReLU()),
            ("conv3", nn.Conv2d(64, 128, 3)),
            ("relu3", nn.ReLU()),
            ("flatten", nn.Flatten()),
            ("dense1", nn.Linear(128 * height * width, 64)),
            ("relu4", nn.ReLU()),
            ("drop1", nn.Dropout(dropout)),
            ("dense2", nn.Linear(64, 32)),
            ("relu5", nn.ReLU()),
            ("drop2", nn.Dropout(dropout)),
            ("dense3", nn.Linear(32, outputs)),
        ]
    )
    if init == "glorot":
        _start_as_keras(model)
    return model


def _start_as_keras(model: nn.Sequential) -> None:
    """Initialise a model as Keras does: Glorot's uniform weights, and biases of 0."""
    for part in model:
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model.name",
    {
        "logistic": logistic,
        "mlp": mlp,
        "small_cnn": small_cnn,
        "lenet": lenet,
        "alzheimer_cnn": alzheimer_cnn,
        "unet": unet,
        "sharpness": sharpness,
    },
    group="fedveil.models",
)


def build_model(
    name: str,
    *,
    input_shape: Sequence[int],
    outputs: int,
    seed: int,
    **options: Any,
) -> nn.Module:
    """Build a model by name, with initial weights from a seed.

    Parameters
    ----------
    name : str
        Key of ``MODELS``, or ``"package.module:Net"``, imported from the Python path or the working directory. Net is
        called with the options, and with `input_shape` and `outputs` if it has such parameters.
    input_shape : sequence of int
        Shape of one example, without the batch axis, e.g. ``(1, 28, 28)``.
    outputs : int
        Number of classes, or of targets of a regression.
    seed : int
        Seed of the weights; the same seed gives the same bits. The global random state is unchanged.
    **options
        Options of the model, and those of `fedveil.learning.tuning.tuned`: weights, train, lora, rank, ... With
        ``cached=True`` the result is only the part that is trained on features; `input_shape` is still that of an
        example.

    Returns
    -------
    torch.nn.Module
        Model in float32, in training mode.

    Raises
    ------
    FieldError
        For an unknown model or option, or sizes that do not fit.

    Examples
    --------
    >>> model = build_model("mlp", input_shape=(64,), outputs=10, seed=0, hidden=(32,))
    >>> sum(p.numel() for p in model.parameters())
    2410
    """
    _, model = halves(name, input_shape=input_shape, outputs=outputs, seed=seed, **options)
    return model


def halves(
    name: str,
    *,
    input_shape: Sequence[int],
    outputs: int,
    seed: int,
    **options: Any,
) -> tuple[nn.Module | None, nn.Module]:
    """Build a model in two parts: the frozen part whose features are computed once (None unless ``cached``), and the rest.

    Parameters
    ----------
    name, input_shape, outputs, seed, **options
        See `build_model`.
    """
    factory = MODELS.find(name)
    of_tuning = tuning_of(name)
    own: dict[str, Any] = {}
    tuning: dict[str, Any] = {}
    for key, value in options.items():
        (tuning if key in of_tuning else own)[key] = value
    model = _built(name, factory, own, input_shape=input_shape, outputs=outputs, seed=seed)
    with _of_model():
        model = tuned(model, **tuning)
        if tuning.get("cached"):
            return front_of(model)
        return None, model


def tuning_of(name: str) -> tuple[str, ...]:
    """Return the names of the options of `tuned` that a model accepts: all that its own factory does not have."""
    own = inspect.signature(MODELS.find(name)).parameters
    _, *keys = inspect.signature(tuned).parameters
    return tuple(key for key in keys if key not in own)


@contextmanager
def _of_model() -> Iterator[None]:
    """Add the prefix ``model.`` to the field of a refusal inside this context."""
    try:
        yield
    except FieldError as error:
        if error.field.startswith("model"):
            raise
        raise FieldError(f"model.{error.field}", error.value, error.accepted) from error


def _built(
    name: str,
    factory: Callable[..., nn.Module],
    options: dict[str, Any],
    *,
    input_shape: Sequence[int],
    outputs: int,
    seed: int,
) -> nn.Module:
    """Build the model by its factory."""
    parameters = inspect.signature(factory).parameters
    accepted = [key for key in parameters if key not in ("input_shape", "outputs")]
    for option in options:
        if option not in accepted:
            hint = nearest(option, accepted) if accepted else "this model has no options"
            raise FieldError(
                f"model.{option}", options[option], f"{name} has no such option; {hint}"
            )
    shape = tuple(require_count("input_shape", side) for side in input_shape)
    outputs = require_count("outputs", outputs)
    given: dict[str, Any] = {}
    if "input_shape" in parameters:
        given["input_shape"] = shape
    if "outputs" in parameters:
        given["outputs"] = outputs
    given |= options
    if name in MODELS:
        _require_memory(name, factory, given, options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(keyed_seed("weights", seed))
        try:
            model = factory(**given)
        except FieldError:
            raise
        except (TypeError, RuntimeError, MemoryError) as error:
            raise FieldError("model.name", name, f"cannot be built: {error}. {_GIVEN}") from error
    if not isinstance(model, nn.Module):
        raise FieldError(
            "model.name", name, f"built a {type(model).__name__}, and not a torch.nn.Module"
        )
    return model


def _require_memory(
    name: str,
    factory: Callable[..., nn.Module],
    given: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Refuse a model too large for any machine; its parameters are counted before memory is reserved for them."""
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in factory(**given).parameters())
    except Exception as error:  # an error of the factory comes again when it is called; some models cannot be built without memory
        size = MOST_PARAMETERS + 1 if "overflow" in str(error).lower() else 0
    if size > MOST_PARAMETERS:
        field = max(options, key=lambda option: _largest(options[option]), default="name")
        accepted = (
            f"makes more than {MOST_PARAMETERS:,} parameters, the most there may be: lower it"
        )
        raise FieldError(f"model.{field}", options.get(field, name), accepted)


def _largest(value: Any) -> float:
    """Return the largest number in an option; 0 without numbers."""
    every = value if isinstance(value, list | tuple) else [value]
    numbers = [float(one) for one in every if isinstance(one, int | float)]
    return max(numbers, default=0.0)


def initial_models(
    factory: str | Callable[[int], nn.Module],
    *,
    k: int,
    seed: int,
    **options: Any,
) -> Tensor:
    """Return the initial parameters of k hypotheses (models), each drawn from its own seed.

    Parameters
    ----------
    factory : str or callable
        Name of a model (then `options` are those of :func:`build_model`), or a function of a seed.
    k : int
        Number of hypotheses. The first is ``factory(seed)``, so with k = 1 the result is an ordinary initial model.
    seed : int
        Seed of the first hypothesis; those of the others are derived from it.

    Returns
    -------
    Tensor
        [k, d], parameters of the hypotheses.
    """
    vectors: list[Tensor] = []
    for j in range(require_count("k", k)):
        own_seed = keyed_seed("hypothesis", seed, j) if j else seed
        if isinstance(factory, str):
            module = build_model(factory, seed=own_seed, **options)
        else:
            module = factory(own_seed)
        vectors.append(Layout.from_module(module).read(module))
    return torch.stack(vectors)


def _scaled(inputs: str) -> Parts:
    """Return the layer that scales inputs, in a list; empty for "given"."""
    scaling: Any = require_choice("inputs", inputs, SCALINGS)
    return [] if scaling == "given" else [("scaled", ScaledInputs(scaling))]


def _stack(parts: Parts) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


def image_shape(input_shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """Return channels, height and width; refuse inputs that are not images of at least `least` x `least` pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise FieldError(
            "input_shape",
            tuple(input_shape),
            f"must be (channels, height, width), {least} or larger",
        )
    channels, height, width = input_shape
    return channels, height, width
