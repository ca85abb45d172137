"""A LightningModule of the site as its trainer: its own steps run, its logs stay, and what cannot train is refused."""

import importlib.util

import pytest
import torch
from site_module import data
from torch import nn

import fedveil as fv
from fedveil.engines import Execution
from fedveil.engines.nvflare.lightning import package_of
from fedveil.engines.nvflare.training import site_training_of
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining
from fedveil.methods import build
from flare_kit import SEED, SITES, Net, run
from test_nvflare_executor import RECORD, ROUNDS, TRAINING, sites_of

pytestmark = pytest.mark.nvflare
INSTALLED = [name for name in ("lightning", "pytorch_lightning") if importlib.util.find_spec(name)]
lightning = pytest.mark.skipif(not INSTALLED, reason="needs Lightning: make lightning")
OWN = {"epochs": 2, "batch_size": 8}
LOSS = "cross_entropy(label_smoothing=0.1)"


def training(kind="Study", local=OWN):
    return {"data": "site_module:data", "local": local, "trainer": f"site_lightning:{kind}"}


@lightning
def test_its_own_steps_and_optimiser_train(tmp_path):
    """Without Lightning the same steps are FedVeil's own, in the same order of batches."""
    sites = sites_of(tmp_path, "vanilla", {}, training())
    found = run(tmp_path, sites, rounds=ROUNDS, site_training=True)
    assert found.engine.panics == []
    federation = fv.Federation(
        model=Net,
        clients=[data(site) for site in SITES],
        method=build("vanilla"),
        seed=SEED,
        local=LocalTraining(lr=0.01, optimizer="adam", loss=LOSS, **OWN),
        execution=Execution(trainer="sequential"),
    )
    expected = federation.run(ROUNDS)
    torch.testing.assert_close(found.models, expected.models, rtol=0, atol=1e-6)
    reports = [log.report for log in found.history]
    assert reports == [pytest.approx(log.round.report) for log in expected.rounds]


@lightning
def test_under_local_trust_nothing_of_it_leaves_but_the_noised_model(tmp_path):
    sites = sites_of(tmp_path, "sga-ldp", {}, training("Raising"))
    found = run(tmp_path, sites, method="sga-ldp", rounds=1, site_training=True)
    assert [log.used for log in found.history] == [(0, 1, 2)]
    assert "diagnosis" not in str([site.sent for site in sites])


@lightning
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "Another"}, "training.trainer"),
        ({"kind": "Stepless"}, "training.trainer"),
        ({"kind": "ByHand"}, "training.trainer"),
        ({"local": {"epochs": 2, "lr": 0.3}}, "training.local.lr"),
    ],
)
def test_what_lightning_could_not_train_is_said_in_the_sites_log_alone(
    changes, field, tmp_path, caplog
):
    """The module may have read data when it was imported: the site has been charged by then."""
    sites = sites_of(tmp_path, "sga-ldp", {}, training(**changes))
    found = run(tmp_path, sites, method="sga-ldp", rounds=1, site_training=True)
    assert [log.used for log in found.history] == [(0, 1, 2)]
    assert field not in str([site.sent for site in sites])
    assert caplog.text.count(f"FieldError: {field}") >= len(SITES)


@lightning
def test_noise_inside_training_is_fedveils_own(tmp_path):
    own = site_training_of(training(), SEED)
    with pytest.raises(FieldError) as refused:
        own.begin(Net(), Layout.from_module(Net()), build("record", **RECORD))
    assert refused.value.field == "training.trainer"


def posing(package):
    """A class of Lightning's name and place, without the package."""
    place = {"__module__": f"{package}.core.module", "__qualname__": "LightningModule"}
    return type("LightningModule", (nn.Linear,), place)


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_as_the_shared_model_it_is_refused_as_its_steps_would_not_run(package):
    kind = type("Mine", (posing(package),), {})
    assert package_of(kind) == package
    own = site_training_of(TRAINING, SEED)
    with pytest.raises(FieldError) as refused:
        own.begin(kind(4, 2), Layout.from_module(kind(4, 2)), build("vanilla"))
    assert refused.value.field == "model"


def test_a_class_of_that_name_from_elsewhere_is_no_lightning():
    assert package_of(posing("hospital")) == ""


@pytest.mark.skipif(bool(INSTALLED), reason="Lightning is installed")
def test_without_the_package_the_sites_log_says_so(tmp_path, caplog):
    sites = sites_of(tmp_path, "sga-ldp", {}, training())
    run(tmp_path, sites, method="sga-ldp", rounds=1, site_training=True)
    assert "lightning" not in str([site.sent for site in sites])
    assert "training.trainer = 'site_lightning:Study'" in caplog.text
