"""A federation as a scikit-learn estimator."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedveil as fv
from fedveil.errors import FieldError
from fedveil.methods.record import RecordDP

# Checks of scikit-learn that make no sense here, and why.
UNFIT = {
    "check_fit_idempotent": "its columns lie around 100, without ranges: SGD at the default rate diverges, and says so",
    "check_fit_check_is_fitted": "the same columns",
    "check_n_features_in": "the same columns",
}


@parametrize_with_checks(
    [fv.FederatedClassifier(), fv.FederatedRegressor()],
    expected_failed_checks=lambda made: UNFIT if isinstance(made, fv.FederatedRegressor) else {},
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cells():
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    names = np.array(["malignant", "benign"])[y]
    return x, names, np.array(["north", "south", "east"])[np.arange(len(x)) % 3]


def test_it_is_the_federation_of_these_clients(cells):
    x, names, hospital = cells
    learner = fv.FederatedClassifier(rounds=3, seed=4).fit(x, names, groups=hospital)
    y = torch.tensor([["benign", "malignant"].index(name) for name in names])
    wide = torch.tensor(x, dtype=torch.float32)
    clients = [(wide[hospital == one], y[hospital == one]) for one in ("east", "north", "south")]
    model = fv.learning.build_model("logistic", input_shape=(30,), outputs=2, seed=4)
    history = fv.Federation(model=model, clients=clients, seed=4).run(3)
    assert torch.equal(history.models, learner.history_.models)
    assert learner.clients_ == ("east", "north", "south")
    assert learner.classes_.tolist() == ["benign", "malignant"]
    model.load_state_dict(history.state_dicts[0])
    with torch.no_grad():
        assert np.allclose(
            learner.predict_proba(x), model(wide).double().softmax(1).numpy(), atol=1e-6
        )
    assert learner.score(x, names) > 0.9
    assert learner.promise_ == "none"


def test_a_promise_carries_all_its_words_and_needs_declared_classes(cells):
    x, names, hospital = cells
    private = fv.GlobalDP(noise_multiplier=2.0, clip=1.0)
    with pytest.raises(FieldError, match="classes"):
        fv.FederatedClassifier(method=private, rounds=2).fit(x, names, groups=hospital)
    learner = fv.FederatedClassifier(method=private, rounds=2, classes=["malignant", "benign"])
    learner.fit(x, names, groups=hospital)
    assert learner.promise_ == "formal eps=2.944 at delta=1e-05 (zero-out, client, central, total)"
    with pytest.raises(FieldError, match="y"):
        learner.set_params(classes=["malignant", "other"]).fit(x, names, groups=hospital)


@pytest.mark.few(0)
def test_persons_are_named_and_counted_at_their_hospitals(cells):
    x, names, hospital = cells
    patient = np.arange(len(x)) // 6  # of three hospitals each
    how = {"unit": "person", "epsilon": 8.0, "delta": 1e-5, "clip": 1.0, "rounds": 2, "rate": 0.2}
    how |= {"people": 95, "records_per_person": 2}
    made = {"method": RecordDP(**how), "rounds": 2, "classes": ["benign", "malignant"]}
    learner = fv.FederatedClassifier(**made)
    with pytest.raises(FieldError, match="person"):
        learner.fit(x, names, groups=hospital)
    with pytest.raises(FieldError, match="silos_per_person"):
        learner.fit(x, names, groups=hospital, person=patient)
    own = np.array([f"{one}-{i // 6}" for i, one in enumerate(hospital)])
    learner.fit(x, names, groups=hospital, person=own)
    assert "person" in learner.promise_
    assert "total" in learner.promise_
    with pytest.raises(FieldError, match="person"):
        learner.fit(x, names, groups=hospital, person=[*own[:-1], ""])


def test_ranges_are_declared_and_held_to(cells):
    rng = np.random.default_rng(0)
    x = rng.uniform([0, 1000], [10, 2000], (90, 2))
    y = (x[:, 0] > 5).astype(int)
    ranges = [(0, 10), (1000, 2000)]
    learner = fv.FederatedClassifier(ranges=ranges, rounds=60, local=fv.LocalTraining(lr=1.0)).fit(
        x, y, groups=np.arange(90) % 3
    )
    assert learner.score(x, y) > 0.9
    x[3, 1] = 3000
    for call in (lambda: learner.fit(x, y), lambda: learner.predict(x)):
        with pytest.raises(FieldError, match=r"X\[:, 1\]"):
            call()
    with pytest.raises(FieldError, match="ranges"):
        clone(learner).set_params(ranges=[(0, 1)]).fit(x, y)


def test_a_regressor_answers_in_the_targets_units():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (120, 3))
    y = 200 + 100 * x[:, 0]
    local = fv.LocalTraining(loss="mse", epochs=5)
    learner = fv.FederatedRegressor(target_range=(0, 500), local=local, rounds=30).fit(
        x, y, groups=np.arange(120) % 4
    )
    assert learner.score(x, y) > 0.9
    with pytest.raises(FieldError, match="target_range"):
        clone(learner).set_params(target_range=(0, 210)).fit(x, y)


def test_it_goes_into_scikit_learns_own_tools(cells):
    x, names, hospital = cells
    learner = fv.FederatedClassifier(rounds=2)
    assert clone(learner).get_params() == learner.get_params()
    assert set(learner.get_params()) >= {
        "model",
        "method",
        "local",
        "rounds",
        "ranges",
        "classes",
        "seed",
    }
    scores = cross_val_score(
        learner, x, names, groups=hospital, cv=GroupKFold(3), scoring="roc_auc"
    )
    assert scores.min() > 0.9
    line = make_pipeline(FunctionTransformer(np.tanh), learner)
    line.fit(x, names, federatedclassifier__groups=hospital)
    assert line[-1].clients_ == ("east", "north", "south")
    with pytest.raises(NotFittedError):
        fv.FederatedClassifier().predict(x)
    several = fv.methods.build("group", hypotheses=2, noise_multiplier=1.0)
    with pytest.raises(FieldError, match="method"):
        fv.FederatedClassifier(method=several, classes=["benign", "malignant"]).fit(
            x, names, groups=hospital
        )
