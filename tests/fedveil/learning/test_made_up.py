"""What fails on made-up examples of the declared shape is refused when the trainer is built, before any message."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer, make_trainer

X = torch.rand(12, 5, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2
WORDS = torch.randint(0, 10, (12, 5), generator=torch.Generator().manual_seed(0))


def clients(x=X, y=Y):
    return [(x[:6], y[:6]), (x[6:], y[6:])]


def record():
    return fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1.0, clip=1.0, examples=6, rounds=1
    )


class Own(nn.Module):
    """Calls `step` in its forward method."""

    def __init__(self, step):
        super().__init__()
        self.head, self.step = nn.Linear(6, 2), step

    def forward(self, x):
        return self.head(self.step(self, x).mean(1))


def fails_in_training(model, x):
    if model.training:
        raise RuntimeError("not while it trains")
    return x


def breaks_the_graph(model, x):
    return (
        x.detach().requires_grad_(False) if not model.training else torch.linalg.inv(x)
    )  # of no square matrix


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("has no way back")


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(NoBackward.apply(self.first(x)).mean(1))


class Centred(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.head, self.mean = nn.Linear(6, 2), mean

    def forward(self, x):
        return self.head(x.mean(1) - self.mean(x.mean(1)))


class Drawing(Centred):
    """Draws as well, so that an example alone is no witness."""

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.1, self.training)


class Recurrent(nn.Module):
    def __init__(self, kind, batch_first, last=True):
        super().__init__()
        self.rnn, self.head, self.last = kind(6, 4, batch_first=batch_first), nn.Linear(4, 2), last

    def forward(self, x):
        out = self.rnn(x)[0]
        return self.head(out[:, -1] if self.last else out[-1])


class Attends(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.attention, self.head = (
            nn.MultiheadAttention(6, 2, batch_first=batch_first),
            nn.Linear(6, 2),
        )

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0][:, -1])


class Bags(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 6, **options), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


class Lengths(nn.Module):
    """Fails where a text has no word, as packed sequences do."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 6, padding_idx=0), nn.Linear(6, 2)

    def forward(self, x):
        lengths = (x > 0).sum(1)
        if (lengths == 0).any():
            raise RuntimeError("lengths must be above 0")
        return self.head(self.table(x).sum(1) / lengths[:, None])


@pytest.mark.parametrize("method", [None, record()])
@pytest.mark.parametrize("model", [Own(fails_in_training), Own(breaks_the_graph), Detached()])
def test_a_model_that_fails_in_training_is_refused_before_the_first_round(model, method):
    with pytest.raises(fv.FieldError, match="declared shape"):
        fv.Federation(model=model, clients=clients(), method=method)


def test_trainers_take_the_declared_shape_alone():
    """Values are not read: there may be no example, and NaN is none."""
    for steps in (None, record().client.noisy_steps):
        for example in ((X[:0], Y[:0]), (X * torch.nan, Y)):
            model = Own(lambda model, x: x)
            layout = fv.Layout.from_module(model)
            make_trainer(model, layout, LocalTraining(), noisy=steps, example=example)
            with pytest.raises(fv.FieldError, match="declared shape"):
                make_trainer(
                    model,
                    layout,
                    LocalTraining(),
                    noisy=steps,
                    example=(example[0][..., :5], example[1]),
                )


def test_a_model_that_takes_some_made_up_examples_is_taken():
    for method in (None, record()):
        history = fv.Federation(
            model=Lengths(), clients=clients(WORDS.clamp(min=1)), method=method
        ).run(1)
        assert not history.rounds[0].zeroed


@pytest.mark.parametrize(
    "model",
    [
        Recurrent(nn.GRU, False),
        Recurrent(nn.LSTM, False),
        Recurrent(nn.RNN, False),
        Attends(False),
        Centred(lambda x: x.mean(0)),
        Centred(lambda x: x[:1]),
        Centred(lambda x: x[-1:]),
        Centred(lambda x: x.flip(0)),
        Centred(lambda x: x.roll(1, 0)),
        Centred(lambda x: x.cumsum(0) - x),
        Drawing(lambda x: x.cumsum(0) - x),
        Centred(lambda x: x / len(x)),
        Centred(lambda x: x * torch.arange(len(x))[:, None]),
    ],
)
def test_a_model_whose_rows_follow_others_their_number_or_their_place_is_refused(model):
    with pytest.raises(fv.FieldError, match=r"other examples|one row an example|alone"):
        fv.Federation(model=model, clients=clients(), method=record())


@pytest.mark.parametrize(
    "model",
    [
        Recurrent(nn.GRU, True),
        Recurrent(nn.LSTM, True),
        Attends(True),
        nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.RReLU(), nn.Linear(8, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.AlphaDropout(0.5), nn.Linear(8, 2)),
    ],
)
def test_a_model_whose_rows_follow_their_examples_is_taken(model):
    assert (
        not fv.Federation(model=model, clients=clients(), method=record()).run(1).rounds[0].zeroed
    )


@pytest.mark.parametrize(
    ("wrap", "inside"),
    [
        (nn.DataParallel, False),
        (nn.DataParallel, True),
        (torch.jit.script, False),
        (torch.jit.script, True),
        (torch.compile, True),
    ],
)
def test_a_module_that_stands_for_another_is_refused_by_name(wrap, inside):
    model = wrap(nn.Sequential(nn.Flatten(), nn.Linear(30, 2)))
    with pytest.raises(fv.FieldError, match="give the"):
        fv.Federation(model=nn.Sequential(model) if inside else model, clients=clients())


def test_parameters_that_are_no_plain_real_numbers_are_refused_by_name():
    with torch.device("meta"):
        empty = nn.Sequential(nn.Flatten(), nn.Linear(30, 2))
    turned = nn.Sequential(nn.Flatten(), nn.Linear(30, 2, dtype=torch.complex64))
    for model, said in (
        (empty, "no values"),
        (turned, "complex"),
        (nn.Sequential(nn.LazyLinear(2)), "size"),
    ):
        with pytest.raises(fv.FieldError, match=said):
            fv.Federation(model=model, clients=clients())


@pytest.mark.parametrize(
    "option", [{"sparse": True}, {"scale_grad_by_freq": True}, {"max_norm": 1.0}]
)
def test_embeddings_train_and_are_refused_at_record_level_where_words_would_show(option):
    history = fv.Federation(model=Bags(**option), clients=clients(WORDS)).run(1)
    assert history.rounds
    with pytest.raises(fv.FieldError, match=next(iter(option))):
        fv.Federation(model=Bags(**option), clients=clients(WORDS), method=record())
    mended = fv.learning.mend(Bags(**option))
    assert (
        not fv.Federation(model=mended, clients=clients(WORDS), method=record())
        .run(1)
        .rounds[0]
        .zeroed
    )


def test_a_sparse_table_trains_as_a_dense_one():
    torch.manual_seed(0)
    sparse = Bags(sparse=True)
    dense = Bags()
    dense.load_state_dict(sparse.state_dict())
    results = [
        fv.Federation(model=m, clients=clients(WORDS)).run(2).models for m in (sparse, dense)
    ]
    torch.testing.assert_close(*results)


def test_what_fails_on_real_examples_alone_counts_as_zero():
    """A refusal would be a bit about data."""

    def large(model, x):
        if (x > 5).any():
            raise RuntimeError("too large")
        return x

    model = Own(large)
    layout = fv.Layout.from_module(model)
    trainer = PrivateTrainer(
        model, layout, LocalTraining(), record().client.noisy_steps, example=(X, Y)
    )
    x = X[:6].clone()
    x[0] = 9
    start = layout.read(model)[None]
    [trained] = trainer.train_noisily(
        start, [ClientData(x, Y[:6])], [(0, 1, 0)], [fv.ReproducibleSource(0)]
    )
    assert trained.failure is None
    [noise] = trainer.train_noisily(
        start, [ClientData(x[:1], Y[:1])], [(0, 1, 0)], [fv.ReproducibleSource(0)]
    )
    assert noise.failure is not None
