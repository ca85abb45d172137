"""Region level: differences to blanked examples, and each way in which it would be wrong."""

import logging
import math

import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from torch import nn

import fedveil as fv
from fedveil.accounting import Gaussian, Poisson, epsilon
from fedveil.errors import FieldError
from fedveil.gdp import delta_of_mu
from fedveil.layout import Layout
from fedveil.learning import ClientData, Inputs, LocalTraining, PrivateTrainer
from fedveil.learning.lots import Lots
from fedveil.learning.noisy_round import NoisyRound
from fedveil.learning.per_example import PerExample
from fedveil.learning.regions import blanked, mark_columns, marks_of
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import NoisySteps

KEY = (0, 1, 0)
QUIET = 1e-12


class Own(nn.Module):
    """A forward method of its own: no known layers."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(16, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(torch.sin(self.inner(x.flatten(1))))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3))


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


MODELS = {"linear": linear, "dense": dense, "convolution": convolution, "own": Own}


def steps(**values):
    usual = {"steps": 1, "rate": 1.0, "clip": 0.3, "deviation": QUIET, "denominator": 1.0}
    return NoisySteps(**usual | {"regions": True} | values)


def client(n=6, seed=0, content=None, dtype=torch.float64, **more):
    """Images of 4x4, the lower half marked; `content` replaces what the first one shows there."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, 4, 4, generator=draw, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 3, (n,), generator=draw)
    masks = torch.zeros(n, 4, 4, dtype=torch.bool)
    masks[:, 2:] = True
    if content is not None:
        x[0, 0, 2:] = content
    return ClientData(x, y, masks=masks, **more)


def made(name="linear", dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return MODELS[name]().to(dtype)


def lots_of(model, noisy):
    layout = Layout.from_module(model)
    drawing = torch.Generator().manual_seed(0)
    sums = PerExample(model, layout, "cross_entropy", drawing)
    return Lots(noisy, sums, Inputs.of(model), drawing), layout


def parts_of(model, data, noisy=None):
    """The clipped sum of differences of a full batch, and the blanked sum."""
    noisy = noisy or steps()
    lots, _ = lots_of(model, noisy)
    total, _ = lots.clipped_sum(data, torch.arange(len(lots.units_of(data))), ReproducibleSource(0))
    return total, lots.blanked_sum(data)


def gradient_of(model, x, y):
    model.zero_grad()
    nn.functional.cross_entropy(model(x[None]), y[None]).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("blank", [0.0, 0.5])
def test_the_sums_are_those_of_single_examples(name, blank):
    model, data = made(name), client()
    found, blank_sum = parts_of(model, data, steps(blank=blank, clip=0.2))
    differences = torch.zeros_like(found)
    others = torch.zeros_like(found)
    for x, y in zip(data.x, data.y, strict=True):
        without = x.clone()
        without[0, 2:] = blank
        other = gradient_of(model, without, y)
        difference = gradient_of(model, x, y) - other
        differences += difference * min(1.0, 0.2 / float(difference.norm()))
        others += other
    torch.testing.assert_close(found, differences, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(blank_sum, others, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_content_moves_the_sum_by_2c_and_against_blank_by_c(name):
    model = made(name, torch.float32)
    full, _ = parts_of(model, client(content=50.0, dtype=torch.float32))
    other, _ = parts_of(model, client(content=-50.0, dtype=torch.float32))
    none, _ = parts_of(model, client(content=0.0, dtype=torch.float32))
    assert float((full - none).norm()) == pytest.approx(0.3, rel=1e-5)  # so it is not less, either
    assert float((full - other).norm()) <= 0.6 * (1 + 1e-9)


def test_two_contents_with_opposite_differences_move_the_sum_by_2c():
    model = made()
    with torch.no_grad():
        model[1].weight.zero_()  # answers are the same for every content
    full, _ = parts_of(model, client(content=50.0))
    other, _ = parts_of(model, client(content=-50.0))
    assert float((full - other).norm()) == pytest.approx(0.6, rel=1e-5)


@pytest.mark.parametrize("content", [1e30, 3e38, -3e38, 1e-40])
@pytest.mark.parametrize("name", MODELS)
def test_extreme_content_moves_nothing_beyond_its_own_share(name, content):
    model = made(name, torch.float32)
    usual, blank_sum = parts_of(model, client(dtype=torch.float32))
    found, same = parts_of(model, client(content=content, dtype=torch.float32))
    assert float((found - usual).norm()) <= 0.6 * (1 + 1e-9)
    assert torch.equal(blank_sum, same)


def test_a_person_moves_the_sum_by_2c_however_many_images_she_has():
    model, person = made(), torch.tensor([0, 0, 0, 0, 1, 1])
    with torch.no_grad():
        model[1].weight.zero_()
    worlds = []
    for content in (80.0, -80.0):
        data = client(person=person)
        x = data.x.clone()
        x[:4, 0, 2:] = content
        data = ClientData(x, data.y, masks=data.masks, person=person)
        worlds.append(parts_of(model, data, steps(images=4)))
    moved = float((worlds[0][0] - worlds[1][0]).norm())
    assert moved == pytest.approx(0.6, rel=1e-5)
    assert torch.equal(worlds[0][1], worlds[1][1])


def test_images_of_a_person_are_clipped_together():
    model, data = made(), client(person=torch.tensor([0, 0, 0, 1, 1, 1]))
    found, blank_sum = parts_of(model, data, steps(images=3, clip=0.05))
    differences = torch.zeros_like(found)
    others = torch.zeros_like(found)
    for rows in (slice(0, 3), slice(3, 6)):
        mean = torch.zeros_like(found)
        for x, y in zip(data.x[rows], data.y[rows], strict=True):
            without = x.clone()
            without[0, 2:] = 0
            other = gradient_of(model, without, y)
            mean += (gradient_of(model, x, y) - other) / 3
            others += other / 3
        differences += mean * min(1.0, 0.05 / float(mean.norm()))
    torch.testing.assert_close(found, differences, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(blank_sum, others, rtol=2e-6, atol=1e-9)


# Counterexamples: each shows that the wrong construction breaks the bound, and that this one keeps it.


def by_expansion(full, other, clip):
    """A difference scaled by |a|^2 + |b|^2 - 2ab, worked out in float64 as in a Gram matrix."""
    squared = full @ full + other @ other - 2 * (full @ other)
    length = math.sqrt(max(0.0, float(squared)))
    return (full - other) * min(1.0, clip / max(length, 1e-300))


def test_expanding_the_square_breaks_the_clip_and_the_formed_difference_keeps_it():
    model = made()
    data = client(1, content=1.0)
    x = data.x.clone()
    x[0, 0, :2] = 1e9  # unmarked, and long: a hostile scale
    with torch.no_grad():
        model[1].weight.zero_()
    data = ClientData(x, data.y, masks=data.masks)
    other = gradient_of(model, blanked(data, 0.0).x[0], data.y[0])
    full = gradient_of(model, data.x[0], data.y[0])
    assert float(by_expansion(full, other, 1e-4).norm()) > 1e4 * 1e-4
    found, _ = parts_of(model, data, steps(clip=1e-4))
    assert float(found.norm()) == pytest.approx(1e-4, rel=1e-5)
    assert float(found.norm()) <= 1e-4


@pytest.mark.parametrize(
    ("relation", "change", "accounted", "true"),
    [("replace-one", 2, 2.0, 16.3), ("zero-out", 1, 1.1, 6.6)],
)
def test_the_blanked_part_over_the_lot_would_undo_the_sampling(relation, change, accounted, true):
    """Poisson lots promise the smaller epsilon; whoever sees the lot sees full steps, as many as were drawn."""
    rate, z, count, delta = 0.05, 2.0, 100, 1e-5

    def excess(target):
        drawn = range(1, count + 1)
        chances = stats.binom.pmf(drawn, count, rate)
        deltas = [delta_of_mu(change * math.sqrt(k) / z, target) for k in drawn]
        return float((chances * deltas).sum()) - delta

    lots = [(Poisson(rate, Gaussian(z)), count)]
    assert epsilon(lots, delta, relation) == pytest.approx(accounted, abs=0.05)
    assert brentq(excess, 0.1, 60.0) == pytest.approx(true, abs=0.1)


def test_the_blanked_part_is_over_all_records_whatever_the_lot():
    """With blank content only the blanked part is left: it must be the same for every lot."""
    model, noisy = made(), steps(rate=0.25, denominator=1.5, public_size=True)
    data = client()
    data = ClientData(blanked(data, 0.0).x, data.y, masks=data.masks)
    lots, layout = lots_of(model, noisy)
    own = NoisyRound(noisy, lots, layout, data, ReproducibleSource(0))
    expected = lots.blanked_sum(data) / 6
    for chosen in ([], [0], [1, 2, 5]):
        found = own.gradient(torch.tensor(chosen, dtype=torch.int64))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_lot_adds_the_differences_of_its_records_alone():
    model, noisy = made(), steps(rate=0.5, denominator=3.0, clip=1e6)
    data = client()
    lots, layout = lots_of(model, noisy)
    own = NoisyRound(noisy, lots, layout, data, ReproducibleSource(0))
    found = own.gradient(torch.tensor([1, 4]))
    expected = lots.blanked_sum(data) / 6
    without = blanked(data, 0.0)
    for i in (1, 4):
        full = gradient_of(model, data.x[i], data.y[i])
        expected = expected + (full - gradient_of(model, without.x[i], data.y[i])) / 3
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-9)


def by_largest(x):
    """Scale each image by its largest value: it joins coordinates."""
    return x / x.flatten(1).amax(1).view(-1, 1, 1, 1)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(by_largest(x).flatten(1))


def test_blanking_comes_before_every_transformation():
    worlds = [client(content=value) for value in (0.1, 9.0)]
    torch.manual_seed(0)
    model = Scaled().double()
    sums = [parts_of(model, data)[1] for data in worlds]
    assert torch.equal(*sums)
    late = [
        ClientData(by_largest(data.x), data.y, masks=data.masks) for data in worlds
    ]  # blanked after it was scaled
    left, right = [parts_of(made(), data)[1] for data in late]
    assert float((left - right).norm()) > 0.1  # without noise, and without a bound


def test_marks_that_follow_content_give_other_blanked_sums_and_a_warning(caplog):
    worlds = [client(content=value) for value in (0.1, 0.9)]
    followed = [ClientData(data.x, data.y, masks=data.x > 0.5) for data in worlds]
    with caplog.at_level(logging.WARNING):
        left, right = [parts_of(made(), data)[1] for data in followed]
    assert float((left - right).norm()) > 1e-3
    assert any("threshold of their values" in record.message for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        left, right = [parts_of(made(), data)[1] for data in worlds]
    assert torch.equal(left, right)
    assert not caplog.records


@pytest.mark.parametrize("shape", [(2, 2), (1, 2, 2), (8, 8)])
def test_targets_of_other_pixels_cannot_be_blanked_and_are_refused(shape):
    data = client()
    target = torch.ones(len(data.x), *shape)
    with pytest.raises(FieldError, match="pixels of x"):
        blanked(ClientData(data.x, target, masks=data.masks), 0.0)


@pytest.mark.parametrize("shape", ["pixels", "image"])
def test_targets_that_contain_marked_coordinates_are_blanked_too(shape):
    def sums(data):
        layout = Layout.from_module(model)
        drawing = torch.Generator().manual_seed(0)
        found = PerExample(model, layout, "mse", drawing)
        return Lots(steps(), found, Inputs.of(model), drawing).blanked_sum(data)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Tanh(), nn.Conv2d(2, 1, 1)).double()
    worlds = []
    for value in (0.1, 0.9):
        data = client(content=value)
        target = data.x if shape == "image" else data.x[:, 0]
        if shape == "pixels":
            model = nn.Sequential(
                nn.Conv2d(1, 2, 1), nn.Tanh(), nn.Conv2d(2, 1, 1), nn.Flatten(1, 2)
            ).double()
            torch.manual_seed(0)
            for parameter in model.parameters():
                nn.init.normal_(parameter)
        worlds.append(ClientData(data.x, target, masks=data.masks))
    assert torch.equal(*map(sums, worlds))
    without = [blanked(data, 0.0) for data in worlds]
    assert torch.equal(without[0].y, without[1].y)
    assert not torch.equal(worlds[0].y, worlds[1].y)


def test_classes_of_marked_pixels_are_blanked_and_classes_of_images_are_not():
    data = client()
    pixels = ClientData(data.x, torch.ones(6, 4, 4, dtype=torch.int64), masks=data.masks)
    assert not blanked(pixels, 0.0).y[:, 2:].any()
    assert blanked(pixels, 0.0).y[:, :2].all()
    assert torch.equal(blanked(data, 0.0).y, data.y)


def test_a_long_blanked_part_added_first_rounds_the_differences_away(monkeypatch):
    """Added first, .2 becomes 128 or 0; here the sum that is noised holds differences alone."""
    assert (1e18 + 0.2) - 1e18 == 0
    assert (1e18 + 65.0) - 1e18 == 128
    seen = []

    def noised(vector, noise, source, dtype):
        seen.append(vector.clone())
        return vector

    monkeypatch.setattr("fedveil.learning.noisy_round.noised", noised)
    model, data = made(), client()
    x = data.x.clone()
    x[:, 0, 0, 0] = 1e18
    with torch.no_grad():
        model[1].weight[:, 0] = 0
    data = ClientData(x, data.y, masks=data.masks)
    lots, layout = lots_of(model, steps(clip=0.1))
    own = NoisyRound(steps(clip=0.1), lots, layout, data, ReproducibleSource(0))
    own.gradient(own.lot())
    assert float(lots.blanked_sum(data).norm()) > 1e17
    assert 0 < float(seen[0].norm()) <= 0.6


def test_noise_has_the_deviation_that_is_promised():
    torch.manual_seed(0)
    model = nn.Linear(2000, 2).double()
    x = torch.zeros(5, 2000, dtype=torch.float64)
    masks = torch.zeros(5, 2000, dtype=torch.bool)
    masks[:, 0] = True
    data = ClientData(x, torch.zeros(5, dtype=torch.int64), masks=masks)
    noisy = steps(deviation=3.0, denominator=4.0)
    layout = Layout.from_module(model)
    trainer = PrivateTrainer(model, layout, LocalTraining(lr=1.0), noisy)
    start = layout.read(model)
    [found] = trainer.train_noisily(start[None], [data], [KEY], [ReproducibleSource(0)])
    public = lots_of(model, noisy)[0].blanked_sum(data) / 4
    moved = ((start - found.model - public) * 4 / 3).numpy()
    statistic = float((moved**2).sum())
    assert 1e-4 < stats.chi2.cdf(statistic, len(moved)) < 1 - 1e-4
    assert stats.chi2.cdf(statistic / 1.1**2, len(moved)) < 1e-4
    assert stats.chi2.cdf(statistic * 1.1**2, len(moved)) > 1 - 1e-4


class Drops(Own):
    """Dropout in a forward method of its own."""

    def forward(self, x):
        return self.out(nn.functional.dropout(self.inner(x.flatten(1)), 0.5, self.training))


def in_layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [in_layers, Drops])
def test_dropout_is_the_same_for_an_example_and_its_blanked_one(make, monkeypatch):
    """So blank content has no difference, as the promise against blank content says."""
    seen = []

    def noised(vector, noise, source, dtype):
        seen.append(vector.clone())
        return vector

    monkeypatch.setattr("fedveil.learning.noisy_round.noised", noised)
    torch.manual_seed(0)
    model, data = make().double(), client()
    same = ClientData(blanked(data, 0.0).x, data.y, masks=data.masks)
    layout = Layout.from_module(model)
    trainer = PrivateTrainer(model, layout, LocalTraining(lr=1.0), steps())
    start = layout.read(model)
    for one in (same, data):
        trainer.train_noisily(start[None], [one], [KEY], [ReproducibleSource(0)])
    assert not seen[0].any()
    assert seen[1].any()


# What is refused


def region(**values):
    return fv.RecordDP(**{"unit": "region", "examples": 6, "noise_multiplier": 1.0} | values)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"relation": "add/remove"}, "relation"),
        ({"sum": "trusted", "silos": 3}, "sum"),
        ({"sum": "secure", "least_sites": 3}, "sum"),
        ({"loop": "app"}, "loop"),
        ({"blank": math.nan}, "blank"),
        ({"blank": math.inf}, "blank"),
        ({"unit": "record", "blank": 1.0}, "blank"),
        ({"people": 3}, "people"),
        ({"unit": "person region"}, "people"),
        ({"unit": "person region", "people": 3, "records_per_person": 2}, "examples"),
        ({"unit": "person region", "examples": None, "people": 3}, "records_per_person"),
    ],
)
def test_methods_refuse_what_makes_no_promise(values, field):
    with pytest.raises(FieldError) as refused:
        region(**values)
    assert refused.value.field == field


@pytest.mark.parametrize("fill", [None, False, True])
def test_masks_of_nothing_or_everything_are_refused_before_the_run(fill):
    data = client()
    masks = None if fill is None else torch.full((6, 4, 4), fill)
    data = ClientData(data.x, data.y, masks=masks)
    with pytest.raises(FieldError, match="masks of silo 1"):
        fv.Federation(model=made(), clients=[client(), data], method=region(), seed=1)


@pytest.mark.parametrize(
    "masks",
    [torch.ones(6, 4, 3, dtype=torch.bool), torch.ones(6, 4, 4), torch.ones(5, 1, 4, 4) > 0],
)
def test_masks_that_do_not_fit_are_refused(masks):
    data = client()
    with pytest.raises(FieldError, match="masks"):
        ClientData(data.x, data.y, masks=masks)


def test_several_marks_by_channel_and_by_column_are_taken():
    table = ClientData(
        torch.rand(4, 3), torch.zeros(4, dtype=torch.int64), masks=torch.eye(4, 3) > 0
    )
    assert torch.equal(marks_of(table), torch.eye(4, 3) > 0)
    images = client()
    assert marks_of(images).shape == images.x.shape
    channel = torch.zeros(6, 1, 4, 4, dtype=torch.bool)
    channel[:, 0, 1, 1] = True
    assert int(marks_of(ClientData(images.x, images.y, masks=channel)).sum()) == 6


class Logarithms(Own):
    """Takes no value of 0."""

    def forward(self, x):
        return self.out(self.inner(x.flatten(1).log()))


@pytest.mark.parametrize(
    ("model", "blank"), [(Logarithms().double(), 0.0), (made(), 1e200), (made("own"), 1e308)]
)
def test_a_blank_value_that_the_model_cannot_take_is_refused_before_the_run(model, blank):
    with pytest.raises(FieldError, match="blank"):
        fv.Federation(model=model, clients=[client()] * 2, method=region(blank=blank), seed=1)


@pytest.mark.parametrize("names", ["a", "ab", ["c"], []])
def test_columns_are_named_in_a_list(names):
    with pytest.raises(FieldError, match="marked"):
        mark_columns(["a", "b"], names, 3)
    assert mark_columns(["a", "b"], ["b"], 3).sum(0).tolist() == [0, 3]


@pytest.mark.parametrize("blank", [-1.0, 0.5, 7.0])
def test_a_blank_word_has_to_be_one_of_the_embedding(blank):
    words = torch.randint(0, 5, (6, 4))
    masks = torch.zeros(6, 4, dtype=torch.bool)
    masks[:, 0] = True
    data = ClientData(words, torch.zeros(6, dtype=torch.int64), masks=masks)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(FieldError, match="blank"):
        fv.Federation(model=model, clients=[data] * 2, method=region(blank=blank), seed=1)
    fv.Federation(model=model, clients=[data] * 2, method=region(blank=4.0), seed=1).run(1)


def test_a_run_says_what_it_does_not_protect():
    run = fv.Federation(
        model=made(), clients=[client(), client(seed=1)], method=region(rounds=4), seed=1
    ).run(4)
    promise = run.guarantee
    assert promise.unit == "region"
    assert promise.mu == pytest.approx(2.0)  # root of 4, over z = 1: content against blank
    assert "marked content alone" in promise.describe(1e-5)
    replaced = region(rounds=4, relation="replace-one").spend().guarantee
    assert replaced.mu == pytest.approx(2.0)  # of one round
