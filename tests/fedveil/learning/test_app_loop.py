"""An app's own loop over FedVeil's lots: the trainer's own bits where it does what the trainer does, or a refusal."""

import logging
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fedveil as fv
from fedveil.errors import FieldError
from fedveil.learning import AppLoop, ClientData, LocalTraining, PrivateTrainer
from fedveil.learning.noisy_round import NoisyRound
from fedveil.learning.witness import witnessed
from fedveil.mechanisms import ReproducibleSource

torch.manual_seed(0)
N, STEPS = 40, 4
X, Y = torch.randn(N, 6), torch.arange(N) % 3
CRITERION = nn.CrossEntropyLoss()


def network(drop=0.0):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 3))


def method(**changes):
    values = {
        "noise_multiplier": 0.7,
        "clip": 0.5,
        "examples": N,
        "rounds": 3,
        "steps": STEPS,
        "rate": 0.3,
    }
    return fv.RecordDP(**{**values, "loop": "app", **changes})


class Site:
    """A trainer, an app's model and optimiser, and the start that a server sent."""

    def __init__(self, side=None, make=network, local=None, data=None, **optimizer):
        self.side, self.local = side or method(), local or LocalTraining(lr=0.4)
        self.layout = fv.Layout.from_module(make())
        self.trainer = PrivateTrainer(make(), self.layout, self.local, self.side.noisy_steps)
        self.model, self.start = make(), self.layout.read(make()) + 0.01
        how = {"lr": 0.4, **optimizer}
        self.optimizer = how.pop("kind", torch.optim.SGD)(self.model.parameters(), **how)
        self.data = data or (X, Y)

    def loop(self, seed=7, **how):
        source = ReproducibleSource(seed)
        return AppLoop(
            self.trainer, self.model, self.optimizer, self.data, self.start, source, **how
        )

    def by_trainer(self, seed=7):
        own = ClientData(*self.data) if isinstance(self.data, tuple) else self.data
        [trained] = self.trainer.train_noisily(
            self.start[None], [own], [(0,)], [ReproducibleSource(seed)]
        )
        return trained


def step(site, x, y, criterion=CRITERION):
    site.optimizer.zero_grad()
    criterion(site.model(x), y).backward()
    site.optimizer.step()


def run_through(loop, each):
    with loop:
        for x, y in loop:
            each(x, y)
    return loop.trained


def played(site, **how):
    return run_through(site.loop(**how), partial(step, site))


@pytest.mark.parametrize(
    ("local", "optimizer"),
    [
        ({"lr": 0.4}, {}),
        ({"lr": 0.4, "momentum": 0.9}, {"momentum": 0.9}),
        (
            {"lr": 0.05, "optimizer": "adam"},
            {"kind": torch.optim.Adam, "lr": 0.05, "foreach": False},
        ),
    ],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_what_leaves_is_what_the_trainer_makes_of_the_same_noise(local, optimizer, drop):
    site = Site(make=lambda: network(drop), local=LocalTraining(**local), **optimizer)
    found, wanted = played(site), site.by_trainer()
    same = 1e-6 if optimizer else 0  # PyTorch's optimisers round by how they are called
    torch.testing.assert_close(found.model, wanted.model, rtol=0, atol=same)
    assert not torch.equal(found.model, site.start)
    assert found.noised == wanted.noised == site.side.noisy_steps
    assert found.examples == N


def test_persons_add_remove_and_full_batches_too():
    owner = torch.arange(N) // 4
    persons = {"unit": "person", "examples": None, "people": N // 4, "records_per_person": 3}
    for changes, person in (
        ({"rate": 1.0}, None),
        ({"relation": "add/remove", "most": 60}, None),
        ({**persons, "rate": 0.5}, owner),
    ):
        site = Site(method(**changes), data=ClientData(X, Y, person=person))
        assert torch.equal(played(site).model, site.by_trainer().model)


def test_the_batches_are_the_lots_behind_one_that_is_made_up():
    site, seen = Site(), []
    known = {tuple(x.tolist()): int(y) for x, y in zip(X, Y, strict=True)}
    with site.loop() as loop:
        assert len(loop) == STEPS + 1
        for x, y in loop:
            seen.append(
                [
                    known.get(tuple(one.tolist())) == int(label)
                    for one, label in zip(x, y, strict=True)
                ]
            )
            step(site, x, y)
    assert len(seen) == STEPS + 1
    assert not any(seen[0])
    assert all(all(batch) for batch in seen[1:])
    assert len({len(batch) for batch in seen[1:]}) > 1  # Poisson lots


def test_an_empty_lot_shows_zeros_and_takes_its_step():
    site = Site(
        method(rate=0.001, examples=1000.0, relation="add/remove", most=2000), data=(X[:2], Y[:2])
    )
    seen = []
    with site.loop() as loop:
        for x, y in loop:
            seen.append(x)
            step(site, x, y)
    assert all(torch.equal(x, torch.zeros(1, 6)) for x in seen[1:])
    assert not torch.equal(loop.trained.model, site.start)


def test_loaders_and_batches_of_another_form():
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    site = Site(data=loader)
    with site.loop(batch=lambda x, y: {"img": x, "label": y}) as loop:
        for batch in loop:
            step(site, batch["img"], batch["label"])
    assert torch.equal(loop.trained.model, Site().by_trainer().model)


def test_a_schedule_by_step_is_the_apps_own():
    site, seen = Site(), []
    schedule = torch.optim.lr_scheduler.StepLR(site.optimizer, 1, 0.5)
    with site.loop() as loop:
        for x, y in loop:
            step(site, x, y)
            schedule.step()
            seen.append(site.optimizer.param_groups[0]["lr"])
    assert seen[-1] == pytest.approx(0.4 * 0.5 ** (STEPS + 1))
    assert not torch.equal(loop.trained.model, site.by_trainer().model)


def mixed(outputs, y):
    return F.cross_entropy(outputs - outputs.mean(0), y)


def more(outputs, y):
    return F.cross_entropy(outputs, y) + outputs.square().mean()


WRONG = {
    "a loss that mixes examples": lambda site, x, y: step(site, x, y, mixed),
    "another term": lambda site, x, y: step(site, x, y, more),
    "a sum": lambda site, x, y: step(site, x, y, nn.CrossEntropyLoss(reduction="sum")),
    "a scaled loss": lambda site, x, y: step(site, x, y, lambda o, y: 128 * CRITERION(o, y)),
    "a batch of the app's own": lambda site, x, y: step(site, X[:5], Y[:5]),
    "no gradient": lambda site, x, y: site.optimizer.step(),
    "no step": lambda site, x, y: None,
    "two steps": lambda site, x, y: (step(site, x, y), site.optimizer.step()),
    "a closure": lambda site, x, y: site.optimizer.step(lambda: CRITERION(site.model(x), y)),
    "code that fails": lambda site, x, y: site.model(x[:, :3]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_the_loop_does_wrongly_is_refused_on_made_up_examples(kind, monkeypatch):
    site = Site()

    def not_yet(*_):
        raise AssertionError("the site's data were touched")

    monkeypatch.setattr(AppLoop, "_rows", not_yet)
    loop = site.loop()
    with pytest.raises((FieldError, RuntimeError)):
        run_through(loop, partial(WRONG[kind], site))
    assert not hasattr(loop, "trained")
    assert not site.optimizer._optimizer_step_pre_hooks
    assert torch.isfinite(site.by_trainer().model).all()  # the trainer is free again


def clipping(site, x, y):
    site.optimizer.zero_grad()
    CRITERION(site.model(x), y).backward()
    nn.utils.clip_grad_norm_(site.model.parameters(), 1e-3)
    site.optimizer.step()


def test_clipping_of_the_apps_own_is_refused():
    site = Site()
    with pytest.raises(FieldError, match="clipping"):
        run_through(site.loop(), partial(clipping, site))


def skips(site, count, x, y):
    if count % 2 == 0:
        step(site, x, y)


def leaves(site, count, x, y):
    step(site, x, y)
    if count == 2:
        raise KeyError(float(x.sum()))


def edits(site, count, x, y):
    step(site, x, y)
    with torch.no_grad():
        for parameter in site.model.parameters():
            parameter.add_(x.sum())


def foreign(site, count, x, y):
    step(site, *((x, y) if count == 0 else (X[:3] * 100, Y[:3])))


def twice(site, count, x, y):
    step(site, x, y)
    if count == 2:
        site.optimizer.step()


def closure(site, count, x, y):
    if count != 1:
        return step(site, x, y)
    return site.optimizer.step(lambda: CRITERION(site.model(x), y).backward())


@pytest.mark.parametrize("misdeed", [skips, leaves, edits, foreign, twice, closure])
def test_what_leaves_follows_no_misdeed_over_the_data(misdeed, caplog):
    """Steps left out, errors, edits of the model, foreign batches: the noised steps are the plan's all the same."""
    site = Site()
    with witnessed() as failures, caplog.at_level(logging.WARNING), site.loop() as loop:
        for count, (x, y) in enumerate(loop):
            misdeed(site, count, x, y)
    assert torch.equal(loop.trained.model, site.by_trainer().model)
    assert bool(failures) == (misdeed in (leaves, twice, closure))
    assert bool(caplog.records) == (misdeed not in (edits, foreign))


@pytest.mark.parametrize("again", [1, 3])
def test_a_step_that_fails_and_is_taken_again_has_the_same_noised_gradient(again, monkeypatch):
    """Two noised answers about one lot would be charged as one."""
    drawn, given, left = [], [], [again]
    noised = NoisyRound.gradient

    def counted(self, chosen):
        drawn.append(chosen)
        return noised(self, chosen)

    def fails(optimizer, args, kwargs):
        given.append(torch.cat([p.grad.flatten() for p in site.model.parameters()]))
        left[0] -= 1
        if left[0] >= 0:
            raise ArithmeticError("once more")

    monkeypatch.setattr(NoisyRound, "gradient", counted)
    site = Site()
    with site.loop() as loop:
        for count, (x, y) in enumerate(loop):
            if count == 2:
                site.optimizer.register_step_pre_hook(fails)
            for _ in range(again if count == 2 else 0):
                with pytest.raises(ArithmeticError):
                    step(site, x, y)
            step(site, x, y)
    assert len(drawn) == STEPS
    assert all(torch.equal(one, given[0]) for one in given[1 : again + 1])
    assert torch.equal(loop.trained.model, site.by_trainer().model)


def test_a_break_and_a_second_pass():
    site = Site()
    with site.loop() as loop:
        for count, (x, y) in enumerate(loop):
            step(site, x, y)
            if count == 1:
                break
    assert torch.equal(loop.trained.model, site.by_trainer().model)
    site = Site()
    with witnessed() as failures, site.loop() as loop:
        for _ in range(2):
            for x, y in loop:
                step(site, x, y)
    assert [error.field for error in failures] == ["loop"]
    assert torch.equal(loop.trained.model, site.by_trainer().model)


@pytest.mark.parametrize("passes", [2, 3, STEPS])
def test_passes_divide_the_steps_of_the_plan(passes):
    """An app's epochs stay; the lots are those of one pass."""
    site, seen = Site(), []
    with site.loop(passes=passes) as loop:
        for epoch in range(passes):
            for x, y in loop:
                step(site, x, y)
                seen.append(epoch)
            assert seen.count(epoch) <= len(loop)
    assert torch.equal(loop.trained.model, site.by_trainer().model)
    assert len(seen) == STEPS + 1
    assert set(seen) == set(range(passes))


def test_a_break_in_a_pass_leaves_its_steps_to_the_next():
    site, seen = Site(), 0
    with site.loop(passes=2) as loop:
        for _ in range(2):
            for x, y in loop:
                seen += 1
                if seen == 2:
                    break  # over a lot whose step is left out
                step(site, x, y)
    assert seen == STEPS + 1
    assert torch.equal(loop.trained.model, site.by_trainer().model)


def test_passes_that_do_not_fit_the_plan():
    with pytest.raises(FieldError, match="passes"):
        Site().loop(passes=STEPS + 1)
    site = Site()
    with witnessed() as failures, site.loop(passes=2) as loop:
        for _ in range(3):
            for x, y in loop:
                step(site, x, y)
    assert [error.field for error in failures] == ["loop"]
    assert torch.equal(loop.trained.model, site.by_trainer().model)


def test_a_first_pass_that_takes_no_step_is_refused_in_the_second():
    with pytest.raises(FieldError, match="step"), Site().loop(passes=2) as loop:
        [next(iter(loop)) for _ in range(2)]


@pytest.mark.parametrize("wrong", [torch.full((6,), 3e38), torch.tensor([3e38, -3e38] * 3)])
def test_an_example_that_is_not_finite_counts_as_zero(wrong):
    spoilt = X.clone()
    spoilt[3] = wrong
    site = Site(data=(spoilt, Y))
    assert torch.equal(played(site).model, site.by_trainer().model)
    assert torch.isfinite(site.by_trainer().model).all()


def test_what_does_not_fit_is_refused_before_the_loop():
    with pytest.raises(FieldError, match="loop"):
        Site(method(loop="trainer")).loop()
    with pytest.raises(FieldError, match="loop"):
        method(sum="trusted", silos=3, steps=1)
    with pytest.raises(FieldError, match="lr"):
        Site(lr=0.1).loop()
    site = Site()
    site.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(FieldError, match="optimizer"):
        site.loop()
    site = Site()
    site.model = nn.Linear(6, 3)
    with pytest.raises(FieldError, match="model"):
        site.loop()
    with pytest.raises(FieldError, match="loop"):
        next(iter(Site().loop()))


def test_a_trainer_that_is_busy_is_refused():
    site = Site()
    with pytest.raises(FieldError, match="trainer"), site.loop(), site.loop():
        pass


def test_a_model_that_draws_its_own_numbers_is_not_compared_and_that_is_said(caplog):
    class Drawing(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1 + torch.rand(()))

    site = Site(make=lambda: Drawing(6, 3))
    with caplog.at_level(logging.WARNING):
        assert torch.isfinite(played(site).model).all()
    assert "not compared" in caplog.text


def test_the_promise_is_conditional_on_the_apps_code():
    from fedveil.accounting.guarantee import APP_LOOP

    own, by_trainer = method().spend().guarantee, method(loop="trainer").spend().guarantee
    assert APP_LOOP in own.conditions
    assert set(own.conditions) - {APP_LOOP} == set(by_trainer.conditions)
    assert own.epsilon(1e-5) == by_trainer.epsilon(1e-5)


def test_a_model_of_the_apps_loop_does_not_pass_for_the_trainers():
    """A method that trusts no app lets nothing out that an app's loop made."""
    from fedveil.methods.facts import Broadcast, ClientFacts, PublicFacts

    site = Site()
    trained = played(site)
    public = PublicFacts(round=1, rounds=3, cohort=2, dimension=site.layout.size)
    broadcast = Broadcast(models=site.start[None], public=public)
    facts = ClientFacts(broadcast=broadcast, layout=site.layout, noised=trained.noised)
    releases = (fv.accounting.Release("model", trained.model),)
    assert site.side.protect(releases, facts, None, ReproducibleSource(1)).releases
    with pytest.raises(FieldError, match="noised"):
        method(loop="trainer").protect(releases, facts, None, ReproducibleSource(1))
