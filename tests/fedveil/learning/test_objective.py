"""What a run measures is what its loss asks for: the loss itself, void labels left out, one output, several labels."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle
from torch import nn
from torch.nn import functional as F

import fedveil as fv
from fedveil.errors import FieldError
from fedveil.learning.metrics import metrics, metrics_of_groups, task_of
from fedveil.learning.objective import require_paired, void_labels

G = torch.Generator().manual_seed(0)
LOGITS, Y = torch.randn(40, 3, generator=G), torch.randint(0, 3, (40,), generator=G)
YES, YES_Y = torch.randn(40, 1, generator=G), torch.randint(0, 2, (40, 1), generator=G).float()
SEVERAL, SEVERAL_Y = (
    torch.randn(40, 3, generator=G),
    torch.randint(0, 2, (40, 3), generator=G).float(),
)


def focal(outputs, y):
    chance = F.binary_cross_entropy_with_logits(outputs, y, reduction="none")
    return ((1 - torch.exp(-chance)) ** 2 * chance).mean()


OF_CLASSES = [
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])),
    nn.CrossEntropyLoss(label_smoothing=0.1),
    nn.CrossEntropyLoss(reduction="sum"),
    partial(F.cross_entropy, label_smoothing=0.2),
    nn.MultiMarginLoss(),
    lambda outputs, y: F.cross_entropy(2 * outputs, y),
]
OF_YES = [nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), focal]


@pytest.mark.parametrize("loss", OF_CLASSES)
def test_the_loss_is_the_one_that_was_asked_for_in_every_group_and_pooled(loss):
    groups, pooled = metrics_of_groups(LOGITS, Y, [10, 0, 30], loss=loss)
    assert pooled["loss"] == pytest.approx(float(loss(LOGITS, Y)))
    assert groups[0]["loss"] == pytest.approx(float(loss(LOGITS[:10], Y[:10])))
    assert pooled["accuracy"] == pytest.approx(oracle.accuracy_score(Y, LOGITS.argmax(1)))


@pytest.mark.parametrize(
    "loss", [nn.HuberLoss(), nn.L1Loss(), nn.MSELoss(), nn.PoissonNLLLoss(), "rmse"]
)
def test_a_regression_has_its_own_loss_and_the_squared_error_s_root(loss):
    outputs, y = torch.randn(30, 1), torch.rand(30, 1)
    found = metrics(outputs, y, loss=loss)
    wanted = F.mse_loss(outputs, y).sqrt() if loss == "rmse" else loss(outputs, y)
    assert found["loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert found["rmse"] == pytest.approx(float(F.mse_loss(outputs, y).sqrt()), rel=1e-5)


@pytest.mark.parametrize("loss", OF_YES)
def test_one_output_is_a_classification_of_two(loss):
    found, said, truth = metrics(YES, YES_Y, loss=loss), YES[:, 0] > 0, YES_Y[:, 0]
    assert found["loss"] == pytest.approx(float(loss(YES, YES_Y)))
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(truth, said))
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, said, average="macro"))
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(truth, YES[:, 0]))
    assert "rmse" not in found


def test_probabilities_of_a_yes_are_cut_at_one_half():
    chances = YES.sigmoid()
    found = metrics(chances, YES_Y, loss=nn.BCELoss())
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(YES_Y, chances > 0.5))
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(YES_Y, chances))


def test_several_labels_by_hand_and_against_scikit_learn():
    names = (
        "loss",
        "accuracy",
        "exact_match",
        "hamming",
        "f1",
        "precision",
        "recall",
        "auc",
        "micro_auc",
    )
    loss = nn.BCEWithLogitsLoss()
    assert task_of(SEVERAL_Y, loss, SEVERAL.shape) == "labels"
    found, said, truth = metrics(SEVERAL, SEVERAL_Y, names, loss), SEVERAL > 0, SEVERAL_Y.int()
    assert found["exact_match"] == pytest.approx(oracle.accuracy_score(truth, said))
    assert found["hamming"] == pytest.approx(oracle.hamming_loss(truth, said))
    assert found["accuracy"] == pytest.approx(1 - found["hamming"])
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, said, average="macro"))
    assert found["precision"] == pytest.approx(oracle.precision_score(truth, said, average="macro"))
    assert found["recall"] == pytest.approx(oracle.recall_score(truth, said, average="macro"))
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(truth, SEVERAL))
    assert found["micro_auc"] == pytest.approx(
        oracle.roc_auc_score(truth, SEVERAL, average="micro")
    )


def test_each_of_several_labels_has_figures_of_its_own():
    names = (
        "auc[each]",
        "f1[each]",
        "accuracy[1]",
        "sensitivity[2]",
        "specificity[2]",
        "exact_match",
    )
    loss = nn.BCEWithLogitsLoss()
    groups, found = metrics_of_groups(SEVERAL, SEVERAL_Y, [10, 0, len(SEVERAL) - 10], names, loss)
    said, truth = (SEVERAL > 0).int(), SEVERAL_Y.int()
    labels = range(SEVERAL.shape[1])
    assert set(found) == {
        "examples",
        "exact_match",
        "accuracy[1]",
        "sensitivity[2]",
        "specificity[2]",
        *(f"auc[{k}]" for k in labels),
        *(f"f1[{k}]" for k in labels),
    }
    for k in labels:
        assert found[f"auc[{k}]"] == pytest.approx(oracle.roc_auc_score(truth[:, k], SEVERAL[:, k]))
        assert found[f"f1[{k}]"] == pytest.approx(
            oracle.f1_score(truth[:, k], said[:, k], average="macro")
        )
        assert groups[0][f"f1[{k}]"] == pytest.approx(
            oracle.f1_score(truth[:10, k], said[:10, k], average="macro", zero_division=0)
        )
    assert found["accuracy[1]"] == pytest.approx(oracle.accuracy_score(truth[:, 1], said[:, 1]))
    assert found["sensitivity[2]"] == pytest.approx(oracle.recall_score(truth[:, 2], said[:, 2]))
    assert found["specificity[2]"] == pytest.approx(
        oracle.recall_score(truth[:, 2], said[:, 2], pos_label=0)
    )


@pytest.mark.parametrize("name", ["auc[9]", "loss[0]", "rmse[0]", "auk[0]", "auc[-1]"])
def test_a_figure_of_a_label_that_is_not_there_is_refused(name):
    with pytest.raises(FieldError, match="metrics"):
        metrics(SEVERAL, SEVERAL_Y, [name], nn.BCEWithLogitsLoss())
    with pytest.raises(FieldError, match="metrics"):
        metrics(LOGITS, Y, ["auc[0]"])


def test_shares_of_classes_are_classes():
    shares = F.one_hot(Y, 3).float()
    found = metrics(LOGITS, shares, loss=nn.CrossEntropyLoss())
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(Y, LOGITS.argmax(1)))
    assert "rmse" not in found


VOID = [
    (nn.CrossEntropyLoss(ignore_index=255), 255),
    (partial(F.cross_entropy, ignore_index=255), 255),
    (lambda outputs, y: F.cross_entropy(outputs, y, ignore_index=255), 255),
    (nn.CrossEntropyLoss(ignore_index=-1), -1),
    (nn.CrossEntropyLoss(ignore_index=1), 1),
    (partial(F.cross_entropy, ignore_index=1), 1),  # a class, too: nothing but the keyword says so
    ("cross_entropy", -100),
    ("dice", -100),
]


@pytest.mark.parametrize(("loss", "void"), VOID)
def test_void_pixels_count_nowhere(loss, void):
    logits, y = torch.randn(4, 3, 5, 5, generator=G), torch.randint(0, 3, (4, 5, 5), generator=G)
    y[:, 0], y[3] = void, void
    names = ("loss", "accuracy", "iou", "f1", "auc", "micro_auc", "specificity")
    kept = (y != void).reshape(-1)
    flat, labels = logits.movedim(1, -1).reshape(-1, 3)[kept], y.reshape(-1)[kept]
    groups, pooled = metrics_of_groups(logits, y, [3, 1], names, loss)
    wanted = metrics(flat, labels, names[1:])
    assert {n: pooled[n] for n in names[1:] if n in wanted} == pytest.approx(
        {n: wanted[n] for n in wanted if n in names}
    )
    assert groups[1] == {"examples": 1}
    if loss != "dice":
        assert pooled["loss"] == pytest.approx(float(F.cross_entropy(flat, labels)), rel=1e-5)
    assert void_labels(loss, y, logits.shape).sum() == (~kept).sum()


@pytest.mark.parametrize("trainer", ["auto", "sequential"])
@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(ignore_index=255), "dice"])
def test_void_labels_train_as_in_pytorch_and_void_alone_moves_nothing(loss, trainer):
    x, void = torch.rand(8, 1, 6, 6, generator=G), 255 if not isinstance(loss, str) else -100
    y = (x[:, 0] > 0.5).long()
    y[:, 0], y[4:] = void, void
    model = nn.Conv2d(1, 2, 1)
    start = [p.detach().clone() for p in model.parameters()]
    local = fv.LocalTraining(loss=loss, lr=0.5, batch_size=8)
    run = fv.Federation(
        model=model, clients=[(x, y, x, y)], local=local, execution=fv.Execution(trainer=trainer)
    ).run(1)
    if loss != "dice":
        plain = F.cross_entropy(model(x), y, ignore_index=void)
        gradients = torch.autograd.grad(plain, list(model.parameters()))
        for value, begun, slope in zip(run.state_dicts[0].values(), start, gradients, strict=True):
            torch.testing.assert_close(value, begun - 0.5 * slope, rtol=1e-4, atol=1e-6)
    nothing = torch.full_like(y, void)
    still = fv.Federation(
        model=model,
        clients=[(x, nothing, x, y)],
        local=local,
        execution=fv.Execution(trainer=trainer),
    ).run(1)
    for value, begun in zip(still.state_dicts[0].values(), start, strict=True):
        assert torch.equal(value, begun)


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(ignore_index=-100)])
def test_an_example_of_void_alone_counts_zero_at_record_level(loss):
    layout_of, x = fv.Layout.from_module, torch.rand(4, 1, 6, 6, generator=G)
    from fedveil.learning.losses import single
    from fedveil.learning.per_example import PerExample

    model = nn.Conv2d(1, 2, 1)
    y = (x[:, 0] > 0.5).long()
    y[2:] = -100
    total, losses = PerExample(model, layout_of(model), single(loss)).clipped_sum(x, y, 1.0)
    alone, _ = PerExample(model, layout_of(model), single(loss)).clipped_sum(x[:2], y[:2], 1.0)
    torch.testing.assert_close(total, alone, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(losses).all()


BROADCAST = [
    nn.MSELoss(),
    nn.L1Loss(),
    nn.HuberLoss(),
    nn.SmoothL1Loss(),
    partial(F.mse_loss, reduction="sum"),
]
BROADCAST += [
    lambda outputs, y: ((outputs - y) ** 2).mean(),
    lambda outputs, y: (outputs - y).abs().mean().sqrt(),
]


@pytest.mark.parametrize("loss", BROADCAST)
@pytest.mark.parametrize(
    ("outputs", "targets"),
    [((1,), ()), ((), (1,)), ((1, 4, 4), (4, 4)), ((4, 4), (1, 4, 4)), ((1, 1), (1,))],
)
def test_shapes_that_pair_everybody_with_everybody_are_refused(loss, outputs, targets):
    with pytest.raises(FieldError, match="reshape"):
        require_paired(loss, (2, *outputs), torch.zeros(2, *targets), "y")


def test_a_loss_that_fits_the_shapes_itself_is_taken():
    y = torch.zeros(2)
    for loss in (
        lambda o, t: F.mse_loss(o[:, 0], t),
        lambda o, t: F.l1_loss(o.squeeze(1), t),
        "mse",
        "rmse",
    ):
        require_paired(loss, (2, 1), y, "y")
    require_paired(nn.CrossEntropyLoss(), (2, 5), y.long(), "y")
    require_paired(nn.CrossEntropyLoss(), (2, 2), y.long(), "y")


@pytest.mark.parametrize("targets", [(1,), ()])
def test_a_federation_refuses_before_its_first_round(targets):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(3, 1)

        def forward(self, x):
            return self.dense(x)[:, 0] if targets else self.dense(x)

    clients = [(torch.rand(8, 3), torch.rand(8, *targets))]
    with pytest.raises(FieldError, match="reshape"):
        fv.Federation(model=Flat(), clients=clients, local=fv.LocalTraining(loss=nn.MSELoss()))


def test_a_federation_of_one_output_shows_the_loss_and_a_classification():
    x = torch.randn(300, 6, generator=G)
    y = (x.sum(1) > 0).float()[:, None]
    loss = nn.BCEWithLogitsLoss()
    clients = [(x[i::3], y[i::3], x[i::3], y[i::3]) for i in range(3)]
    local = fv.LocalTraining(loss=loss, lr=1.0, epochs=5)
    model = nn.Linear(6, 1)
    history = fv.Federation(model=model, clients=clients, local=local).run(4)
    model.load_state_dict(history.state_dicts[0])
    assert history.metrics["loss"] == pytest.approx(float(loss(model(x), y).detach()), rel=1e-4)
    assert history.metrics["auc"] == pytest.approx(oracle.roc_auc_score(y, model(x).detach()))
    assert np.isfinite(history.metrics["f1"])


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
def test_a_negative_class_that_the_loss_does_not_pass_over_is_refused(loss):
    clients = [(torch.rand(8, 3), torch.tensor([-1, 1] * 4))]
    with pytest.raises(FieldError, match="ignore_index=-1"):
        fv.Federation(model=nn.Linear(3, 2), clients=clients, local=fv.LocalTraining(loss=loss))


def test_numbers_that_are_no_classes_have_a_loss_alone():
    def contrast(outputs, y):
        same = (y[:, None] == y).float()
        return (torch.cdist(outputs, outputs) * same).mean()

    y = torch.arange(40) // 2
    assert set(metrics(LOGITS, y, loss=contrast)) == {"examples", "loss"}


def test_a_client_under_flower_refuses_shapes_before_its_first_message():
    pytest.importorskip("flwr")
    from fedveil.engines.flower.app import learner_client_app

    model = nn.Linear(3, 1)
    learner = fv.Learner(model, fv.Layout.from_module(model), fv.LocalTraining(loss=nn.MSELoss()))
    with pytest.raises(FieldError, match="reshape"):
        learner_client_app(
            learner,
            [fv.ClientData(torch.rand(8, 3), torch.rand(8))],
            fv.methods.build("vanilla"),
            seed=0,
        )
