"""Models, losses, rates and data as people have them: what their code gives is taken as it is, or refused by name."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import fedveil as fv
from fedveil.engines import Execution
from fedveil.errors import FieldError
from fedveil.learning import LOSSES
from fedveil.learning import clients as held
from fedveil.learning.clients import ClientData, OnDemand
from fedveil.learning.losses import cross_entropy, outputs_of
from fedveil.learning.scores import layer_scores
from fedveil_lab.attacks.observation import Knowledge
from fedveil_lab.config import parse
from fedveil_lab.runs.runner import run

torch.manual_seed(0)
X = torch.randn(60, 5, 4)
Y = (X.sum((1, 2)) > 0).long()
CLIENTS = [(X[i::3], Y[i::3], X[i::3], Y[i::3]) for i in range(3)]


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 2)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Logits(Plain):
    def forward(self, x):
        return SimpleNamespace(loss=None, logits=super().forward(x))


class Named(Plain):
    def forward(self, x):
        return {"aux": x, "out": super().forward(x)}


class Pair(Plain):
    def forward(self, x):
        return super().forward(x), x


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.head = kind(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        found, state = self.cells(x)
        return self.head(found[:, -1]), state


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(20, 8), nn.Linear(8, 2)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x.flatten(1)).tanh())


def seeded(make):
    torch.manual_seed(1)
    return make()


def federation(model, **options):
    return fv.Federation(model=model, **{"clients": CLIENTS, "seed": 1, **options})


@pytest.mark.parametrize("kind", [Logits, Named, Pair])
def test_an_output_that_is_no_tensor_trains_as_its_tensor_does(kind):
    plain, other = seeded(Plain), seeded(kind)
    execution = Execution(trainer="sequential")
    wanted, found = (federation(m, execution=execution).run(2) for m in (plain, other))
    assert torch.equal(wanted.models, found.models)
    assert wanted.metrics == found.metrics


@pytest.mark.parametrize(
    "method", [None, fv.GlobalDP(noise_multiplier=0.1, clip=1.0), fv.SGALDP(epsilon_max=8.0)]
)
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_recurrent_layers_train_under_client_level_methods(kind, method):
    model = Recurrent(kind)
    history = federation(model, method=method).run(2)
    assert not history.rounds[-1].zeroed
    assert history.metrics["examples"] == 60
    model.load_state_dict(history.state_dicts[0])


@pytest.mark.parametrize("kind", [Logits, Named, Pair])
def test_record_level_takes_the_same_outputs(kind):
    record = fv.RecordDP(epsilon=8.0, delta=1e-5, rounds=2, examples=20, clip=1.0)
    wanted, found = (federation(seeded(k), method=record).run(2) for k in (Plain, kind))
    torch.testing.assert_close(found.models, wanted.models)


def test_attacks_and_scores_see_the_same_outputs():
    plain, other = seeded(Plain), seeded(Logits)
    layout, data = fv.Layout.from_module(plain), ClientData(X, Y)
    vector = layout.read(plain)
    one, two = (Knowledge(m, layout, "cross_entropy", data) for m in (plain, other))
    assert torch.equal(one.gradient(vector, data), two.gradient(vector, data))
    assert torch.equal(one.loss_of(vector[None, None], data), two.loss_of(vector[None, None], data))
    images, region = X[:4, None], (0, 0, 2, 2)
    for method in ("exact", "signal"):
        scores = [
            layer_scores(m, "cross_entropy", images, Y[:4], region, method) for m in (plain, other)
        ]
        assert scores[0] == scores[1]


def test_outputs_that_are_none_are_refused_by_name():
    with pytest.raises(FieldError, match=r"SimpleNamespace.*\.logits"):
        outputs_of(SimpleNamespace(scores=X))
    with pytest.raises(FieldError, match="output"):
        federation(nn.Sequential(nn.Flatten(), nn.Linear(20, 2), Lists()))


class Lists(nn.Module):
    def forward(self, x):
        return [x.tolist()]


def test_what_is_frozen_tied_or_kept_stands_in_the_state_dict():
    frozen = seeded(Frozen)
    before = frozen.backbone.weight.clone()
    history = federation(frozen).run(1)
    other = Frozen()
    other.load_state_dict(history.state_dicts[0])
    assert torch.equal(other.backbone.weight, before)
    assert torch.equal(fv.Layout.from_module(other).read(other), history.models[0])
    normed = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(20), nn.Linear(20, 2))
    kept = federation(normed, shared=fv.Shared(buffers="keep"))
    normed.load_state_dict({**kept.run(1).state_dicts[0], **kept.clients[0].buffers})
    assert not torch.equal(normed[1].running_mean, torch.zeros(20)), (
        "a client's own statistics, not the initial ones"
    )
    tied = nn.Sequential(nn.Flatten(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20))
    tied[3].weight = tied[1].weight
    state = federation(tied).run(1).state_dicts[0]
    assert torch.equal(state["1.weight"], state["3.weight"])
    assert not torch.equal(state["1.weight"], tied[1].weight)
    tied.load_state_dict(state)


def half(output, y):
    return 0.5 * cross_entropy(output, y)


def test_a_loss_of_ones_own_is_the_one_trained_on(monkeypatch, tmp_path):
    """Half the loss at twice the rate is the same training, by a function, a registered name or an import."""
    wanted = federation(seeded(Plain), local=fv.LocalTraining(lr=0.25)).run(2).models
    monkeypatch.setitem(LOSSES, "half", half)
    (tmp_path / "my_losses.py").write_text(
        "from torch.nn import functional as F\ndef half(o, y):\n    return 0.5 * F.cross_entropy(o, y)\n"
    )
    monkeypatch.chdir(tmp_path)
    for loss in (half, "half", "my_losses:half"):
        found = federation(seeded(Plain), local=fv.LocalTraining(lr=0.5, loss=loss)).run(2).models
        torch.testing.assert_close(found, wanted)
    sys.modules.pop("my_losses")
    toml = {
        "name": "own",
        "rounds": 1,
        "data": {"name": "digits", "clients": 3},
        "model": {"name": "logistic"},
        "local": {"loss": "my_losses:half", "lr": 0.2},
    }
    usual = {**toml, "local": {"lr": 0.1}}
    rows = [run(parse(values)).rows[-1]["metrics"]["loss"] for values in (toml, usual)]
    assert 2 * rows[0] == pytest.approx(rows[1], rel=1e-5)  # each shows the loss that was asked for


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.CrossEntropyLoss(reduction="none"), "one number"),
        (nn.CrossEntropyLoss, r"CrossEntropyLoss\(\)"),
        ("no_module_of_this_name:loss", "imported"),
        ("mae", "mse"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(loss, said):
    with pytest.raises(FieldError, match=said):
        federation(Plain(), local=fv.LocalTraining(loss=loss))


def test_adamw_is_torchs_in_both_trainers():
    """One client, one batch: a round is one step of torch's own AdamW."""
    local = fv.LocalTraining(lr=0.05, optimizer="adamw", weight_decay=0.3, batch_size=60)
    model = seeded(Plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3)
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    wanted = fv.Layout.from_module(model).read(model)
    sequential = nn.Sequential(nn.Flatten(), nn.Linear(20, 2))
    for trainer in ("sequential", "batched"):
        sequential[1].load_state_dict(seeded(Plain).layer.state_dict())
        with pytest.warns(UserWarning, match="one client"):
            found = federation(
                sequential, clients=[(X, Y)], local=local, execution=Execution(trainer=trainer)
            )
        torch.testing.assert_close(found.run(1).models[0], wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(FieldError, match="weight_decay"):
        fv.LocalTraining(weight_decay=0.1)


def test_rates_follow_the_round():
    """Cosine over 4 rounds from .1: .1 (1 + cos(pi (r - 1) / 4)) / 2, and round 4's from then on; steps of 3 rounds."""
    cosine = [fv.LocalTraining(lr=0.1, cosine_rounds=4).rate(r) for r in (1, 2, 3, 4, 9)]
    assert cosine == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447, 0.0146447], abs=1e-7)
    steps = [fv.LocalTraining(lr=1.0, decay=0.1, decay_every=3).rate(r) for r in (1, 3, 4, 7)]
    assert steps == pytest.approx([1, 1, 0.1, 0.01])
    own = fv.LocalTraining(lr=lambda r: 0.2 if r == 1 else 0.0)
    one, two = (federation(seeded(Plain), local=own).run(rounds).models for rounds in (1, 2))
    torch.testing.assert_close(one, two)
    assert not torch.equal(one[0], fv.Layout.from_module(seeded(Plain)).read(seeded(Plain)))
    with pytest.raises(FieldError, match="every round"):
        fv.LocalTraining(lr=lambda r: 0.1, decay=0.5)


def test_a_rate_that_changes_is_refused_where_it_is_part_of_the_promise():
    record = fv.RecordDP(epsilon=8.0, delta=1e-5, rounds=2, examples=20, clip=1.0)
    for local in (fv.LocalTraining(lr=lambda r: 0.1), fv.LocalTraining(cosine_rounds=5)):
        with pytest.raises(FieldError, match="noise inside training"):
            federation(Plain(), method=record, local=local)
    with pytest.raises(FieldError, match="loss = "):
        federation(Plain(), method=record, local=fv.LocalTraining(loss=half))


class Counted(Dataset):
    """Counts its reads."""

    def __init__(self, x, y):
        self.x, self.y, self.reads = x, y, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.reads.append(i)
        return self.x[i], int(self.y[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def sets():
    return [(Counted(x, y), Counted(a, b)) for x, y, a, b in CLIENTS]


@pytest.mark.parametrize("trainer", ["auto", "sequential"])
def test_data_sets_and_loaders_train_to_the_bits_of_their_tensors(trainer, monkeypatch):
    execution = Execution(trainer=trainer)
    wanted = federation(seeded(Plain), execution=execution).run(2)
    loaders = [
        tuple(DataLoader(half, batch_size=7, shuffle=True) for half in pair) for pair in sets()
    ]
    for clients in (sets(), loaders):
        found = federation(seeded(Plain), clients=clients, execution=execution).run(2)
        assert torch.equal(wanted.models, found.models)
        assert wanted.metrics == found.metrics
    monkeypatch.setattr(held, "MOST", 100)
    clients = sets()
    found = federation(seeded(Plain), clients=clients, execution=execution)
    assert isinstance(found.clients[0].x, OnDemand)
    reads = clients[0][0].reads
    reads.clear()
    torch.testing.assert_close(found.run(2).models, wanted.models)
    assert sorted(reads) == sorted([*range(20)] * 2), "each round reads each example once"


def test_what_needs_all_examples_of_a_large_data_set_at_once_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(held, "MOST", 100)
    clients = federation(Plain(), clients=sets()).clients
    known = Knowledge(Plain(), fv.Layout.from_module(Plain()), "cross_entropy", clients[0])
    with pytest.raises(FieldError, match="one batch at a time"):
        known.gradient(torch.zeros(42), clients[0])
    with pytest.raises(FieldError, match="one batch at a time"):
        clients[0].x.mean()
    joined = torch.cat([c.x for c in clients])
    assert torch.equal(
        joined[torch.tensor([0, 19, 20, 59])], torch.cat([c[0] for c in CLIENTS])[[0, 19, 20, 59]]
    )


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Stream(), "map-style"),
        (Counted(X[:0], Y), "at least 1"),
        (torch.utils.data.TensorDataset(X), "pair"),
        (Counted([X[0], X[1, :2]], Y), "one shape"),
        (Counted((X * 9).byte(), Y), "255"),
        (Counted(X.clone().fill_(float("nan")), Y), "finite"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(bad, said):
    with pytest.raises(FieldError, match=said):
        federation(Plain(), clients=[bad, *CLIENTS])
