"""Parameters of less precision than float32, which torch's fused step on a CPU leaves as they were."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.learning.training import Stepper


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("size", [1, 24, 100])  # the kernel takes 16 at once
def test_a_step_moves_every_value(kind, optimizer, size):
    value = nn.Parameter(torch.ones(size, dtype=kind))
    value.grad = torch.full((size,), 0.25, dtype=kind)
    Stepper([value], fv.LocalTraining(optimizer=optimizer, lr=0.5)).step(0.5)
    wanted = 1 - 0.5 * (0.25 if optimizer == "sgd" else 1.0)  # Adam's first step is the sign
    torch.testing.assert_close(
        value.detach().double(), torch.full((size,), wanted).double(), rtol=0, atol=0.01
    )
