"""Networks of one paper each; `fedveil.learning.build_model` makes them by name."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fedveil.errors import require_choice, require_count
from fedveil.learning import ACTIVATIONS, image_shape, lenet, mlp


def regression(
    input_shape: Sequence[int], outputs: int = 1, *, hidden: Sequence[int] = (2,)
) -> nn.Module:
    """Make a small ReLU network; by default 3 inputs, 2 hidden units and 1 output (11 parameters)."""
    return mlp(input_shape, outputs, hidden=hidden, activation="relu")


def femnist_cnn(
    input_shape: Sequence[int], outputs: int, *, heads: int = 62, activation: str = "relu"
) -> nn.Module:
    """Make LEAF's CNN, with 1,206,590 parameters at 1x28x28 as in the group-privacy paper's table 3.

    It has 3x3 convolutions of 32 and 64 channels, one pooling, and dense layers of 128 and `heads` outputs, at least
    `outputs`. The parameter count implies the 3x3 kernels.
    """
    make = ACTIVATIONS[require_choice("activation", activation, ACTIVATIONS)]
    channels, height, width = image_shape(input_shape, 8)
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    parts: list[tuple[str, nn.Module]] = [("conv1", nn.Conv2d(channels, 32, 3)), ("act1", make())]
    parts += [
        ("conv2", nn.Conv2d(32, 64, 3)),
        ("pool", nn.MaxPool2d(2)),
        ("act2", make()),
        ("flatten", nn.Flatten()),
    ]
    parts += [("dense1", nn.Linear(flat, 128)), ("act3", make())]
    return nn.Sequential(
        OrderedDict(
            [*parts, ("dense2", nn.Linear(128, max(outputs, require_count("heads", heads))))]
        )
    )


def uniform_lenet(input_shape: Sequence[int], outputs: int, *, half: float = 0.5) -> nn.Module:
    """Make a LeNet with sigmoids whose parameters start in U(-half, half), as in the code of DLG's authors."""
    model = lenet(input_shape, outputs)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -half, half)
    return model
