"""Membership: scores by hand, against scipy, on models that memorise; FedMIA and source inference on updates."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch
from torch import nn
from torch.nn import functional as F

from fedveil import Federation
from fedveil.engines import Evaluation
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, build_model, predict
from fedveil.learning.models import initial_models
from fedveil_lab.attacks import ServerView, judge
from fedveil_lab.attacks.membership import (
    SCORES,
    Signals,
    balanced,
    bavaria,
    by_class,
    by_round_and_client,
    calibrated,
    confidence,
    fed_mia,
    guess,
    lira,
    log_roc,
    loss,
    loss_of_confidence,
    rmia,
    same_classes,
    signals,
    train_shadows,
    trajectory,
)
from fedveil_lab.attacks.membership.scores import Moments, variance_prior
from fedveil_lab.attacks.statistics import auc, auc_interval, rate


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def model_of(features=6, classes=3, seed=0):
    model = build_model("mlp", input_shape=(features,), outputs=classes, seed=seed, hidden=(16,))
    return model, Layout.from_module(model)


# ---- signals


def test_log_odds_are_those_of_the_softmax_and_do_not_saturate():
    model, layout = model_of()
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 2, 0])
    vector = layout.read(model)
    odds = confidence(model, layout, torch.stack([vector, 100 * vector]), x, y)
    p = predict(model, layout, vector, x).double().softmax(1)[torch.arange(5), y]
    torch.testing.assert_close(odds[0], (p / (1 - p)).log(), rtol=1e-6, atol=1e-6)
    expected = F.cross_entropy(predict(model, layout, vector, x).double(), y, reduction="none")
    torch.testing.assert_close(loss_of_confidence(odds[0]), expected, rtol=1e-9, atol=1e-9)
    assert torch.isfinite(odds[1]).all()
    assert float(odds[1].abs().max()) > 50  # where p would round to 0 or 1


# ---- the family


def some(seed=0, m=20, n=30, spread=1.0, population=50):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(m + 1, n, generator=generator, dtype=torch.float64) * spread
    inside = balanced(m, n, seed)
    return Signals(
        draw[0],
        draw[1:] + 2.0 * inside,
        inside,
        torch.randn(population, generator=generator, dtype=torch.float64),
        torch.randn(m, population, generator=generator, dtype=torch.float64),
    )


def test_every_record_is_in_half_of_the_shadow_models():
    inside = balanced(8, 100, 0)
    assert inside.sum(0).tolist() == [4] * 100
    assert len({tuple(row.tolist()) for row in inside}) == 8
    assert balanced(3, 7, 0).sum(0).tolist() == [2] * 7
    with pytest.raises(FieldError, match="models"):
        balanced(1, 3, 0)


def test_scores_by_hand():
    # one record, log-odds of the attacked model 0 (p = 1/2); shadow models with it at 1 and 3, without at -1 and -3
    inside = torch.tensor([[True], [True], [False], [False]])
    s = Signals(
        f64(0.0),
        f64([1.0], [3.0], [-1.0], [-3.0]),
        inside,
        f64(0.0, 2.0, -2.0),
        torch.zeros(4, 3).double(),
    )
    assert loss(s).item() == pytest.approx(-math.log(2))
    usual = (math.log1p(math.exp(1)) + math.log1p(math.exp(3))) / 2
    assert calibrated(s).item() == pytest.approx(usual - math.log(2))
    # variances (n - 1) are 2 on either side: equal distances, so the ratio is 0
    assert lira(s).item() == pytest.approx(0)
    assert lira(s, online=False).item() == pytest.approx(2 / math.sqrt(2))
    # p / mean p: the record's .5 over the mean of .731, .953, .269 and .047, .5, is 1; the population has 1, 1.76, .24
    assert rmia(s, gamma=1.0).item() == pytest.approx(2 / 3)
    assert rmia(s, gamma=2.0).item() == pytest.approx(1 / 3)


def test_lira_is_the_ratio_of_fitted_gaussians():
    s = some(m=80)
    expected = []
    for i in range(30):
        inner, outer = (s.shadows[side[:, i], i].numpy() for side in (s.inside, ~s.inside))
        law = [scipy.stats.norm(v.mean(), v.std(ddof=1)) for v in (inner, outer)]
        expected.append(law[0].logpdf(s.target[i]) - law[1].logpdf(s.target[i]))
    np.testing.assert_allclose(lira(s), expected, rtol=1e-9)
    few = some(m=20)  # one variance for all
    pooled = []
    for side in (few.inside, ~few.inside):
        sets = [few.shadows[side[:, i], i].numpy() for i in range(30)]
        variance = sum(((v - v.mean()) ** 2).sum() for v in sets) / sum(len(v) - 1 for v in sets)
        pooled.append(
            [
                scipy.stats.norm(v.mean(), variance**0.5).logpdf(few.target[i])
                for i, v in enumerate(sets)
            ]
        )
    np.testing.assert_allclose(lira(few), np.subtract(*pooled), rtol=1e-9)


@pytest.mark.parametrize("m", [3, 200])
def test_bavaria_is_the_predictive_of_its_prior(m):
    s = some(m=2 * m, spread=torch.linspace(0.2, 3, 30))
    expected = {"t": [], "normal": []}
    priors = []
    for side in (s.inside, ~s.inside):
        sets = [s.shadows[side[:, i], i].numpy() for i in range(30)]
        squares = torch.tensor([((v - v.mean()) ** 2).sum() for v in sets])
        moments = Moments(torch.full((30,), float(m)).double(), torch.zeros(30), squares)
        priors.append((sets, squares.numpy(), *variance_prior(moments)))
    for i in range(30):
        logs = {"t": [], "normal": []}
        for sets, squares, weight, usual in priors:
            freedom = weight + m - 1
            variance = (weight * usual + squares[i]) / freedom
            at, mean = s.target[i], sets[i].mean()
            logs["t"].append(
                scipy.stats.t(freedom, mean, (variance * (1 + 1 / m)) ** 0.5).logpdf(at)
            )
            logs["normal"].append(scipy.stats.norm(mean, variance**0.5).logpdf(at))
        for tail, pair in logs.items():
            expected[tail].append(pair[0] - pair[1])
    for tail, values in expected.items():
        np.testing.assert_allclose(bavaria(s, tail=tail), values, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weight", [4.0, 30.0])
def test_the_prior_of_variances_is_found_again(weight):
    # s_i^2 = 2 weight / chi^2(weight), seen through chi^2(5) of the shadow models
    rng = np.random.default_rng(0)
    true = 2.0 * weight / rng.chisquare(weight, 20000)
    squares = torch.from_numpy(true * rng.chisquare(5, 20000))
    found = variance_prior(Moments(torch.full((20000,), 6.0).double(), torch.zeros(20000), squares))
    assert found[0] == pytest.approx(weight, rel=0.15)
    assert found[1] == pytest.approx(2.0, rel=0.05)
    equal = variance_prior(
        Moments(torch.full((9,), 6.0).double(), torch.zeros(9), torch.full((9,), 10.0).double())
    )
    assert equal[0] == 1e6  # they do not differ at all


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SCORES)
def test_scores_prefer_members_and_say_nothing_of_nobody(name):
    generator = torch.Generator().manual_seed(1)
    inside, member = balanced(33, 800, 1)[1:], torch.rand(800, generator=generator) < 0.5
    level = 2 * torch.randn(800, generator=generator, dtype=torch.float64)  # easy and hard records
    noise = torch.randn(33, 800, generator=generator, dtype=torch.float64)
    others = torch.randn(33, 400, generator=generator, dtype=torch.float64) + 2 * torch.randn(
        400, generator=generator
    )
    shadows = level + noise[1:] + 1.5 * inside
    attacked = Signals(level + noise[0] + 1.5 * member, shadows, inside, others[0], others[1:])
    score = SCORES[name](attacked)
    assert score.dtype == torch.float64
    assert auc(score[member], score[~member]) > (0.6 if name == "loss" else 0.7)
    nobody = SCORES[name](Signals(level + noise[0], shadows, inside, others[0], others[1:]))
    found = auc_interval(nobody[member], nobody[~member])
    assert found.low <= 0.5 <= found.high


def test_shadow_models_memorise_what_they_are_given():
    # random labels: a model can only know those it was trained on
    generator = torch.Generator().manual_seed(0)
    data = ClientData(
        torch.randn(200, 20, generator=generator), torch.randint(0, 2, (200,), generator=generator)
    )
    population = ClientData(
        torch.randn(200, 20, generator=generator), torch.randint(0, 2, (200,), generator=generator)
    )
    model = build_model("mlp", input_shape=(20,), outputs=2, seed=0, hidden=(32,))
    layout, inside = Layout.from_module(model), balanced(10, 200, 0)
    starts = initial_models("mlp", k=10, seed=0, input_shape=(20,), outputs=2, hidden=(32,))
    made = train_shadows(
        model, layout, LocalTraining(epochs=20, batch_size=20, lr=0.3), starts, data, inside
    )
    odds = confidence(model, layout, made, data.x, data.y)
    assert float(odds[inside].mean()) > 2 + float(odds[~inside].mean())
    found = signals(model, layout, made[0], made[1:], inside[1:], data, population)
    torch.testing.assert_close(found.target, odds[0])
    for name, score in SCORES.items():
        values = score(found)
        assert auc(values[inside[0]], values[~inside[0]]) > 0.75, name


def test_shadow_models_follow_the_rates_of_the_rounds_that_they_go_through():
    generator = torch.Generator().manual_seed(0)
    data = ClientData(
        torch.randn(8, 5, generator=generator), torch.randint(0, 2, (8,), generator=generator)
    )
    model = build_model("logistic", input_shape=(5,), outputs=2, seed=0)
    layout, inside = Layout.from_module(model), balanced(4, 8, 0)
    local = LocalTraining(epochs=2, batch_size=8, lr=0.4, decay=0.5)
    made = train_shadows(model, layout, local, layout.read(model), data, inside, rounds=[1, 2, 3])
    vectors = layout.read(model)
    for lr in (0.4, 0.2, 0.1):
        vectors = train_shadows(
            model, layout, replace(local, lr=lr, decay=1.0), vectors, data, inside
        )
    torch.testing.assert_close(made, vectors)


def test_scores_look_at_one_clients_update_and_at_its_trajectory():
    # what the server receives of one client: shadow models start where it started, on as many records
    generator = torch.Generator().manual_seed(3)
    x, y = (
        torch.randn(160, 20, generator=generator),
        torch.randint(0, 2, (160,), generator=generator),
    )
    data, member = ClientData(x, y), torch.rand(160, generator=generator) < 0.5
    model = build_model("mlp", input_shape=(20,), outputs=2, seed=0, hidden=(32,))
    local, view = LocalTraining(epochs=4, batch_size=20, lr=0.3), ServerView()
    rest = [ClientData(torch.randn(80, 20), torch.randint(0, 2, (80,))) for _ in range(2)]
    clients = [ClientData(x[member], y[member]), *rest]
    federation = Federation(
        model=model, clients=clients, local=local, evaluation=Evaluation(probes=[view])
    )
    federation.run(3)
    asked = []
    for seen in (r for r in view.received if r.partition == 0):
        inside = balanced(8, 160, seen.round)
        made = train_shadows(
            federation.learner.model, federation.layout, local, seen.starts[0], data, inside
        )
        asked.append(
            signals(federation.learner.model, federation.layout, seen.model, made, inside, data)
        )
    single = [auc(calibrated(s)[member], calibrated(s)[~member]) for s in asked]
    whole = trajectory(asked, calibrated)
    assert min(single) > 0.6
    assert auc(whole[member], whole[~member]) >= np.mean(single)
    torch.testing.assert_close(trajectory(asked), torch.stack([loss(s) for s in asked]).mean(0))


@pytest.mark.slow
def test_64_shadow_models_on_digits_in_a_quarter_of_a_minute():
    from fedveil.data.bundled import load_digits

    digits = load_digits()
    data = ClientData(digits.x[:1400], digits.y[:1400])
    model = build_model("mlp", input_shape=(1, 8, 8), outputs=10, seed=0, hidden=(64,))
    starts = initial_models("mlp", k=64, seed=0, input_shape=(1, 8, 8), outputs=10, hidden=(64,))
    began = time.process_time()
    train_shadows(
        model,
        Layout.from_module(model),
        LocalTraining(epochs=60, batch_size=32, lr=0.3),
        starts,
        data,
        balanced(64, 1400, 0),
    )
    assert time.process_time() - began < 15


def test_bad_signals_are_refused():
    with pytest.raises(FieldError, match="shadows"):
        Signals(torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.bool))
    everywhere = Signals(torch.zeros(3), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(FieldError, match="without each record"):
        lira(everywhere)
    with pytest.raises(FieldError, match="population"):
        rmia(everywhere)


# ---- at the server


def test_fedmia_by_hand():
    # one round; others at 1 and 3 (mean 2, deviation sqrt 2); the target at 2 + sqrt 2 lies at one deviation
    measure = f64([[2 + math.sqrt(2)], [1.0], [3.0]])[None].reshape(1, 3, 1)
    assert fed_mia(measure, 0).item() == pytest.approx(0.841345, abs=1e-6)
    twice = torch.cat([measure, f64([[[2.0], [1.0], [3.0]]]).reshape(1, 3, 1)])
    assert fed_mia(twice, 0).item() == pytest.approx((0.841345 + 0.5) / 2, abs=1e-6)
    with pytest.raises(FieldError, match="two other clients"):
        fed_mia(measure[:, :2], 0)


def test_by_class_takes_off_what_a_client_does_to_a_class():
    y, reference_y = torch.tensor([0, 1]), torch.tensor([0, 0, 1, 1])
    reference = f64([1.0, 3.0, 10.0, 30.0])
    found = by_class(f64([4.0, 40.0]), y, reference, reference_y)
    assert found[0].tolist() == pytest.approx([2 / math.sqrt(2), 20 / math.sqrt(200)])
    with pytest.raises(FieldError, match="reference"):
        by_class(f64([4.0]), torch.tensor([2]), reference, reference_y)


def test_non_members_with_the_members_classes():
    members, others = torch.tensor([0, 0, 1]), torch.tensor([0] * 5 + [1] * 2 + [2] * 9)
    rows = same_classes(members, others)
    assert others[rows].tolist() == [0, 0, 0, 0, 1, 1]
    with pytest.raises(FieldError, match="class 1"):
        same_classes(torch.tensor([1, 1, 1]), others)


@pytest.fixture(scope="module", params=[100.0, 0.1], ids=["even", "uneven"])
def seen(request):
    """What a server received of six clients on digits, and the records in question."""
    from fedveil.data.bundled import load_digits
    from fedveil.data.dealing import partition

    digits = load_digits()
    order = torch.randperm(len(digits.x), generator=torch.Generator().manual_seed(0))
    x, y = digits.x[order], digits.y[order]
    parts = partition(y[:300].numpy(), 6, "dirichlet", alpha=request.param, seed=1, min_size=20)
    clients = [ClientData(x[:300][p], y[:300][p]) for p in parts]
    model = build_model("mlp", input_shape=(1, 8, 8), outputs=10, seed=0, hidden=(32,))
    view = ServerView()
    local = LocalTraining(epochs=5, batch_size=16, lr=0.2)
    federation = Federation(
        model=model, clients=clients, local=local, evaluation=Evaluation(probes=[view])
    )
    federation.run(5)
    partitions, table = by_round_and_client(view.received)
    assert partitions == list(range(6))
    assert len(table) == 5
    tools = federation.learner.model, federation.layout
    odds = torch.stack(
        [confidence(*tools, torch.stack([r.model for r in row]), x, y) for row in table]
    )
    owner = torch.full((300,), -1)
    for i, part in enumerate(parts):
        owner[torch.as_tensor(part)] = i
    return odds, y, owner, request.param


def test_fedmia_tells_members_where_classes_are_even(seen):
    odds, y, owner, alpha = seen
    reference, reference_y = odds[..., 1000:], y[1000:]
    scaled = by_class(odds[..., :1000], y[:1000], reference, reference_y)
    areas, within = [], []
    for client in range(6):
        members = (owner == client).nonzero().flatten()
        for measure, kept in ((odds, areas), (scaled, within)):
            score = fed_mia(measure, client)
            kept.append(auc(score[members], score[300:1000]))
    plain, by = np.mean(areas), np.mean(within)
    if alpha == 100.0:
        assert plain > 0.55
        assert plain < by  # difficulty differs between classes
    else:  # whose class it is, and little about the record
        assert plain > 0.8
        assert by < plain - 0.15
        few = []
        for client in range(6):
            members = (owner == client).nonzero().flatten()
            rows = 300 + same_classes(y[members], y[300:])
            score = fed_mia(odds, client)
            few.append(auc(score[members], score[rows]))
        assert np.mean(few) < plain - 0.15


def test_a_record_is_put_down_to_the_client_that_knows_it_best(seen):
    odds, _, owner, _ = seen
    said = guess(odds[..., :300].mean(0)) == owner
    assert rate(int(said.sum()), 300).low > 1 / 6
    assert guess(f64([1.0, 0.0, 5.0], [2.0, -1.0, 4.0])).tolist() == [1, 0, 0]


def test_only_clients_that_replied_in_every_round_are_compared():
    from fedveil_lab.attacks import Received

    start = torch.zeros(1, 2)
    received = [Received(r, p, start, torch.ones(2)) for r, p in ((1, 0), (1, 2), (2, 2), (2, 1))]
    partitions, table = by_round_and_client(received)
    assert partitions == [2]
    assert [[r.partition for r in row] for row in table] == [[2], [2]]
    with pytest.raises(FieldError, match="every round"):
        by_round_and_client(received[::3])


# ---- the verdict


def test_rates_at_few_false_positives_are_refused_where_too_few_non_members_are_there():
    rng = np.random.default_rng(0)
    members, others = rng.normal(1.0, 1, 400), rng.normal(0.0, 1, 400)
    verdict = judge("loss", "none", members, others)
    assert verdict.low < scipy.stats.norm.cdf(1 / math.sqrt(2)) < verdict.high
    rates = verdict.true_rates
    assert (
        rates["0.1"].low < scipy.stats.norm.cdf(1 + scipy.stats.norm.ppf(0.1)) < rates["0.1"].high
    )
    assert rates["0.01"] is rates["0.001"] is None  # 400 * .01 = 4 expected


def test_the_roc_on_logarithmic_axes():
    rng = np.random.default_rng(0)
    members, others = rng.normal(2.0, 1, 2000), rng.normal(0.0, 1, 5000)
    false, true = log_roc(members, others)
    assert false[0] == pytest.approx(10 / 5000)
    assert false[-1] == true[-1] == 1
    assert (np.diff(true) >= 0).all()
    exact = scipy.stats.norm.cdf(2 + scipy.stats.norm.ppf(false))
    np.testing.assert_allclose(true, exact, atol=0.06)
    np.testing.assert_allclose(false[1:] / false[:-1], (false[-1] / false[0]) ** (1 / 99))


def test_a_dense_layer_without_memory_gives_nothing():
    model = nn.Linear(3, 2)
    layout = Layout.from_module(model)
    x, y = torch.randn(400, 3), torch.randint(0, 2, (400,))
    odds = confidence(model, layout, layout.read(model)[None], x, y)[0]
    verdict = judge("loss", "untrained", odds[:200], odds[200:])
    assert verdict.low < 0.5 < verdict.high
