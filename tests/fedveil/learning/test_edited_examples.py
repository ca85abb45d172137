"""Examples that somebody writes in place between rounds, or between steps: what was known of them clips nothing."""

import pytest
import torch
from torch import Tensor

from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer, build_model
from fedveil.learning.noisy_round import NoisyRound
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import NoisySteps

N, C = 40, 0.5


@pytest.fixture
def lots(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Units and length of each clipped sum."""
    seen: list[tuple[int, float]] = []
    plain = NoisyRound.clipped_sum

    def watched(self: NoisyRound, chosen: Tensor) -> Tensor:
        total = plain(self, chosen)
        seen.append((len(chosen), float(total.double().norm())))
        return total

    monkeypatch.setattr(NoisyRound, "clipped_sum", watched)
    return seen


def trainer_of(rate: float, images: int) -> tuple[PrivateTrainer, Tensor]:
    model = build_model("logistic", input_shape=(6,), outputs=3, seed=0)
    layout = Layout.from_module(model)
    units = N // (images or 1)
    noisy = NoisySteps(
        steps=3, rate=rate, clip=C, deviation=0.1, denominator=rate * units, images=images
    )
    return PrivateTrainer(model, layout, LocalTraining(lr=0.1), noisy), layout.read(model)


@pytest.mark.parametrize("times", [1e3, 1e6])
@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("images", [0, 2, 4])
def test_nobody_moves_a_sum_by_more_than_the_clip_after_an_edit(
    lots: list[tuple[int, float]], times: float, rate: float, images: int
) -> None:
    """All examples point one way, so that a sum of m is as long as m clips, or longer if an old norm clipped it."""
    torch.manual_seed(0)
    x, y = 1 + 0.01 * torch.randn(N, 6), torch.zeros(N, dtype=torch.int64)
    other = ClientData(x.clone(), y, person=torch.arange(N) // (images or 1))
    client = ClientData(x, y, person=torch.arange(N) // (images or 1))
    trainer, start = trainer_of(rate, images)
    for number, whose in enumerate((client, other, client)):
        [made] = trainer.train_noisily(
            start[None], [whose], [(number,)], [ReproducibleSource(number)]
        )
        assert not isinstance(made, Exception)
        x *= times
    assert len(lots) == 9
    assert all(length <= units * C for units, length in lots)
    assert max(length / (units * C) for units, length in lots if units) > 0.9
