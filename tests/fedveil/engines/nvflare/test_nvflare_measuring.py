"""Training code under FLARE has the checks and the figures of the other engines."""

import pytest
import torch
from torch import nn

import fedveil as fv

pytest.importorskip("nvflare")
from fedveil.nvflare import check_shapes, measure

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(20, 3, generator=G), torch.rand(20, generator=G)
CLASSES = torch.arange(20) % 2


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss()]
)
def test_outputs_that_would_meet_everybodys_targets_are_refused(loss):
    for look in (check_shapes, measure):
        with pytest.raises(fv.FieldError, match="reshape"):
            look(nn.Linear(3, 1), X, Y, loss)
    check_shapes(nn.Linear(3, 1), X, Y[:, None], loss)


@pytest.mark.parametrize(
    ("outputs", "y", "loss"),
    [
        (2, CLASSES, "cross_entropy"),
        (2, CLASSES, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))),
        (1, CLASSES[:, None].float(), nn.BCEWithLogitsLoss()),
        (1, Y[:, None], nn.L1Loss()),
        (1, Y, "rmse"),
    ],
)
def test_figures_are_those_of_the_embedded_engine(outputs, y, loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layout = fv.Layout.from_module(model, buffers="keep")
    wanted = fv.learning.evaluate(model, layout, layout.read(model), X, y, loss=loss)
    found = measure(model, X.numpy(), y.numpy(), loss)
    assert found == pytest.approx(
        {name: value for name, value in wanted.items() if name != "examples"}
    )
    function = loss if callable(loss) else None
    if function is not None:
        assert found["loss"] == pytest.approx(
            float(function(model.eval()(X), y).detach()), rel=1e-5
        )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
