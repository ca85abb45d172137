"""The ends of `fedveil.ranges`: one unit moves a sum by the clip at most, noise has its scale; beyond, refused.

One record moved a sum by 3.84 C at C = 1e-300, where factors are subnormal.
"""

import math

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.accounting import (
    Limits,
    Policy,
    StepFilter,
    advise,
    epsilon,
    least_noise,
    plan,
    reading,
    step_event,
)
from fedveil.accounting.bounds import GDP, PLD, ZCDP, MetricDP, MetricGDP
from fedveil.accounting.events import (
    Changed,
    DiscreteGaussian,
    EuclideanLaplace,
    Gaussian,
    Laplace,
    Mixture,
    Poisson,
    events_from_list,
)
from fedveil.aggregation import RunningSum
from fedveil.aggregation.updates import Updates
from fedveil.clipping import clip
from fedveil.errors import FieldError
from fedveil.gdp import (
    delta_of_mu,
    epsilon_of_mu,
    epsilon_of_rho,
    meaning_of_mu,
    mu_of_epsilon,
    noise_of_epsilon,
)
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.learning.per_example import PerExample
from fedveil.mechanisms import (
    GaussianNoise,
    ReproducibleSource,
    SecureSource,
    gaussian_sigma,
    noised,
)
from fedveil.methods import build
from fedveil.ranges import RANGES
from fedveil.secure import on_grid

ENDS = [(kind, end) for kind in ("clip",) for end in (RANGES[kind].least, RANGES[kind].most)]
BOUND = 1 + 1e-6
SCALES = (1e-42, 1e-20, 1.0, 1e15, 1e30)


class Own(nn.Module):
    """Layers behind code of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 3)

    def forward(self, x):
        return self.layers(x * 1.0)


def rows(scale, n=9, seed=0):
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(seed)) + 0.5
    x[-1] *= scale
    return x, torch.full((n, 3), 0.25)


@pytest.mark.parametrize("most", [end for _, end in ENDS], ids=str)
@pytest.mark.parametrize("model", [nn.Linear(4, 3), Own()], ids=["layers", "own code"])
@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("grid", [0.0, 1e-6], ids=["floats", "grid"])
def test_one_record_or_person_moves_a_sum_by_the_clip(most, model, each, grid):
    sums = PerExample(model, Layout.from_module(model), "mse")
    for scale in SCALES:
        x, y = rows(scale)
        here = torch.ones(len(x), dtype=torch.bool)
        gone = here.clone()
        gone[-each:] = False
        step = grid * most
        both = [
            sums.clipped_sum(x, y, most, p, each=each, grid=step)[0].to(torch.float64)
            for p in (here, gone)
        ]
        moved = torch.linalg.vector_norm((both[0] - both[1]) / (most if not grid else 1)) * (
            grid or 1.0
        )
        assert float(moved) <= BOUND, scale


@pytest.mark.parametrize("most", [end for _, end in ENDS], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_client_moves_a_sum_of_updates_by_the_clip(most, dtype):
    for scale in SCALES:
        update = torch.rand(3, 1000, generator=torch.Generator().manual_seed(1)).to(dtype) * scale
        kept = clip(update, most).to(torch.float64)
        assert float((kept / most).norm(dim=1).max()) <= 1, scale
        assert (
            float((on_grid(kept, 1e-6 * most).to(torch.float64) * 1e-6).norm(dim=1).max()) <= 1
        ), scale
        start, weights = (
            torch.zeros(1000, dtype=dtype),
            torch.full((3,), 1 / 3, dtype=torch.float64),
        )
        still = update.clone()
        still[-1] = 0
        whole = [
            Updates(rows, start).clipped(most).reduce(fv.FedAvg(), weights, 3)
            for rows in (update, still)
        ]
        running = []
        for world in (update, still):
            summed = RunningSum(start, most, weights)
            for place, model in enumerate(world):
                summed.take(place, model.clone())
            running.append(summed.reduce(fv.FedAvg(), weights, 3))
        for found in (whole, running):
            assert float(((found[0] - found[1]) / most).norm()) <= BOUND / 3, scale


@pytest.mark.parametrize("most", [end for _, end in ENDS], ids=str)
@pytest.mark.parametrize("order", ["formal", "printed"])
def test_one_client_moves_a_mean_by_its_share(most, order):
    """The mean of four; the noise is the same in both worlds, and quiet."""

    class Still(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            for p in self.parameters():
                nn.init.zeros_(p)

    loud = fv.LocalTraining(lr=1e3, loss="mse")
    clients = [rows(1.0, seed=i) for i in range(4)]
    found = []
    for last in (clients[3], (clients[3][0] * 0, clients[3][1] * 0)):
        side = fv.GlobalDP(noise_multiplier=1.0, clip=most, order=order)
        fed = fv.Federation(
            model=Still(), clients=[*clients[:3], last], method=side, local=loud, seed=0
        )
        fed.run(1)
        found.append(fed.models[0].to(torch.float64))
    moved = float(((found[0] - found[1]) / most).norm())
    assert moved <= 0.25 + 1e-5


@pytest.mark.parametrize("source", [ReproducibleSource(0), SecureSource()], ids=["seed", "secure"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [RANGES["sigma"].least, RANGES["sigma"].most], ids=str)
def test_noise_is_drawn_at_its_scale(source, dtype, sigma):
    drawn = (
        noised(torch.zeros(40_000, dtype=dtype), GaussianNoise(sigma), source).to(torch.float64)
        / sigma
    )
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.02)
    assert float(drawn.abs().max()) < 9.4


@pytest.mark.parametrize("most", [end for _, end in ENDS], ids=str)
@pytest.mark.parametrize("z", [1.0, RANGES["noise multiplier"].least])
def test_a_step_has_the_noise_that_is_counted(most, z):
    side = fv.RecordDP(examples=100, noise_multiplier=z, clip=most).noisy_steps
    assert side.deviation == pytest.approx(z * most)
    model = nn.Linear(200, 20, bias=False)
    trainer = PrivateTrainer(
        model, Layout.from_module(model), LocalTraining(lr=1.0, loss="mse"), side
    )
    nobody = ClientData(torch.zeros(3, 200), torch.zeros(3, 20))
    start = torch.zeros(4000)
    [found] = trainer.train_noisily(start[None], [nobody], [(0,)], [ReproducibleSource(0)])
    scale = side.deviation / side.denominator
    if scale > 1e-37:  # a quieter step is rounded with its noise by float32
        assert float((found.model.to(torch.float64) / scale).std()) == pytest.approx(1.0, abs=0.05)


def beyond(kind):
    """The next numbers outside of a row; where an end is open, itself."""
    row = RANGES[kind]
    low = [] if row.least in (0, 5e-324) else [row.least * (1 - 1e-9), row.least * 1e-9, 1e-300]
    high = [row.most] if row.open else [math.nextafter(row.most, math.inf), row.most * 1e9]
    return [*low, *high, -1.0, math.nan, math.inf]


SECURE = {"sum": "secure", "examples": 9, "least_sites": 3}
TAKES = {  # of each kind: whatever takes such a number
    "clip": [
        lambda v: fv.RecordDP(examples=9, noise_multiplier=1.0, clip=v),
        lambda v: fv.RecordDP(
            unit="person", people=9, records_per_person=2, noise_multiplier=1.0, clip=v
        ),
        lambda v: build("record", **SECURE, noise_multiplier=1.0, clip=v),
        lambda v: fv.GlobalDP(noise_multiplier=1.0, clip=v),
        lambda v: fv.FedRE(clip=v),
        lambda v: fv.SGALDP(clip=v),
        lambda v: fv.QuantileClip(initial=v),
        lambda v: clip(torch.ones(3), v),
        lambda v: plan(delta=1e-5, rounds=1, noise_multiplier=1.0, clip=v),
        lambda v: reading(clip=v, sigma=1.0, rounds=1),
    ],
    "radius": [lambda v: build("group", radius=v), lambda v: build("group", fallback_radius=v)],
    "noise multiplier": [
        lambda v: fv.RecordDP(examples=9, noise_multiplier=v),
        lambda v: fv.GlobalDP(noise_multiplier=v),
        lambda v: build("record", **SECURE, units=9, noise_multiplier=v),
        lambda v: plan(delta=1e-5, rounds=1, noise_multiplier=v),
    ],
    "noise of one number": [
        lambda v: fv.Publishing(metrics="noised", noise_multiplier=v),
        lambda v: fv.Validation(noise_multiplier=v),
        lambda v: fv.QuantileClip(bit_noise=v),
        lambda v: fv.SGALDP(similarity_noise=v),
    ],
    "sigma": [lambda v: reading(clip=1.0, sigma=v, rounds=1)],
    "rate": [
        lambda v: fv.RecordDP(examples=9, noise_multiplier=1.0, rate=v),
        lambda v: Poisson(v, Gaussian(1.0)),
        lambda v: Changed(v, Gaussian(1.0)),
        lambda v: step_event(1.0, v),
    ],
    "epsilon": [
        lambda v: fv.RecordDP(examples=9, epsilon=v, rounds=2),
        lambda v: fv.GlobalDP(epsilon=v, rounds=2),
        lambda v: fv.FedRE(epsilon=v),
        lambda v: fv.SGALDP(epsilon_min=v, epsilon_max=v),
        lambda v: plan(delta=1e-5, rounds=1, epsilon=v),
        lambda v: advise(clients=4, examples=9, dimension=9, rounds=2, epsilon=v),
    ],
    "delta": [
        lambda v: fv.RecordDP(examples=9, epsilon=4.0, delta=v, rounds=2),
        lambda v: fv.GlobalDP(epsilon=4.0, delta=v, rounds=2),
        lambda v: Policy(delta=v),
        lambda v: plan(delta=v, rounds=1, epsilon=4.0),
        lambda v: reading(clip=1.0, sigma=1.0, rounds=1, delta=v),
        lambda v: fv.FedRE(epsilon=4.0, delta=v),
        lambda v: fv.SGALDP(epsilon_min=1.0, epsilon_max=2.0, delta=v),
        lambda v: advise(clients=4, examples=9, dimension=9, rounds=2, epsilon=4.0, delta=v),
        lambda v: gaussian_sigma(4.0, v),
        lambda v: epsilon_of_mu(1.0, v),
        lambda v: epsilon_of_rho(1.0, v),
        lambda v: mu_of_epsilon(4.0, v),
        lambda v: noise_of_epsilon(4.0, v),
        lambda v: fv.Filter(4.0, v),
        lambda v: StepFilter.within(Gaussian(1.0), 4.0, v, "zero-out"),
        lambda v: epsilon([(Gaussian(1.0), 1)], v),
        lambda v: epsilon([(Poisson(0.1, Gaussian(1.0)), 1)], v),
        lambda v: GDP(1.0).epsilon(v, "zero-out"),
        lambda v: GDP(1.0, 1.0).epsilon_at(1.0, v),
        lambda v: ZCDP(1.0).epsilon(v, "zero-out"),
        lambda v: MetricGDP(1.0).epsilon_at(1.0, v),
        lambda v: MetricDP(1.0, ((EuclideanLaplace(3, 1.0), 1),)).epsilon_at(1.0, v),
        lambda v: least_noise(4.0, v, 1),
    ],
    "mu": [GDP, lambda v: epsilon_of_mu(v, 1e-5), lambda v: delta_of_mu(v, 1.0), meaning_of_mu],
    "mu per distance": [MetricGDP, lambda v: GDP(1.0, v)],
    "noise of an event": [
        Gaussian,
        Laplace,
        DiscreteGaussian,
        lambda v: Mixture(v, (1.0,), (1.0,)),
        lambda v: Poisson(0.1, Gaussian(v)),
        lambda v: events_from_list([[{"kind": "Gaussian", "noise_multiplier": v}, 1]]),
        lambda v: step_event(v, 1.0),
    ],
    "shift of an event": [lambda v: EuclideanLaplace(3, v)],
    "limit": [
        lambda v: Limits(mu=v),
        lambda v: Limits(record_epsilon=v),
        lambda v: Limits(person_mu=v),
    ],
    "planned units": [lambda v: fv.RecordDP(examples=v, noise_multiplier=1.0)],
    "range of a metric": [
        lambda v: fv.Publishing(loss_range=v),
        lambda v: fv.Validation(loss_range=v),
    ],
}


def test_a_release_quieter_than_any_event_joins_a_total_at_the_price_of_the_quietest_event():
    sampled = PLD(((Poisson(0.1, Gaussian(1.0)), 1),))
    alone = epsilon(sampled.events, 1e-5)
    for mu in (1e-41, 5e-324):
        total = PLD.total([sampled, GDP(mu)], "zero-out")
        assert total.epsilon(1e-5, "zero-out") == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("kind", TAKES)
def test_what_lies_beyond_an_end_is_refused_by_whatever_takes_it(kind):
    for take in TAKES[kind]:
        for value in beyond(kind):
            with pytest.raises(FieldError):
                take(value)


@pytest.mark.parametrize("kind", sorted(set(TAKES) - {"epsilon", "delta"}))
def test_the_ends_themselves_are_taken(kind):
    row = RANGES[kind]
    for take in TAKES[kind]:
        for value in (row.least, row.most * (1 - 1e-9)):
            take(value)


def test_a_product_of_two_ends_that_no_noise_has_is_refused():
    quiet, loud = RANGES["noise multiplier"].least, RANGES["noise multiplier"].most
    for make in (fv.GlobalDP, lambda **v: fv.RecordDP(examples=9, **v)):
        make(noise_multiplier=loud, clip=1.0)
        with pytest.raises(FieldError, match="clip"):
            make(noise_multiplier=loud, clip=RANGES["clip"].most)
        make(noise_multiplier=quiet, clip=RANGES["clip"].least * 10)


@pytest.mark.parametrize("lr", [1e-300, 1e13, 1e300])
def test_a_share_of_a_trusted_sum_neither_rounds_away_nor_overflows_alone(lr):
    """At 1e300 each share was infinite by itself, and told its own sign, with the noise of one silo."""
    side = build("record", sum="trusted", silos=3, examples=4, noise_multiplier=1.0)
    clients = [(torch.rand(4, 4), torch.zeros(4, dtype=torch.int64)) for _ in range(3)]
    with pytest.raises((FieldError, fv.FedVeilError), match="lr"):
        fv.Federation(
            model=nn.Linear(4, 3),
            clients=clients,
            method=side,
            local=fv.LocalTraining(lr=lr),
            seed=0,
        ).run(1)


def test_every_row_has_a_reason_and_two_ends():
    for kind, row in RANGES.items():
        assert row.least < row.most, kind
        assert len(row.why) > 15, kind
