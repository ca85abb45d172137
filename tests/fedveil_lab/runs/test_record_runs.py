"""Record-level privacy through configurations: the demo's preset, what is filled in, and what is refused."""

from dataclasses import replace

import pytest
import torch

from fedveil.data.patches import LENGTH, RingFeatures, learn_patches, learn_rings
from fedveil.errors import FedVeilError, FieldError
from fedveil.files import Ledgers
from fedveil_lab.config import load
from fedveil_lab.config.variants import configure, variants_of
from fedveil_lab.report.planning import of_strength
from fedveil_lab.report.tables import worst_guarantee
from fedveil_lab.runs import run
from fedveil_lab.runs.deal import deal_out
from fedveil_lab.runs.prepare import prepare


def settings(name, *changes):
    config = load(name, list(changes))
    return {v.label: configure(config, v.label, v.setting) for v in variants_of(config)}


@pytest.mark.few(0)
def test_the_demo_promises_what_it_says_within_a_little_of_no_privacy():
    found = {
        label: run(config, setting=label) for label, config in settings("digits-record").items()
    }
    accuracy = {label: s.averaged("accuracy") for label, s in found.items()}
    promises = {label: next(iter(s.values["guarantees"].values())) for label, s in found.items()}
    for label, unit in (
        ("trusted sum", "record"),
        ("no trust", "record"),
        ("client-level", "client"),
    ):
        name = next(x for x in found if label in x)
        assert promises[name]["unit"] == unit
        assert promises[name]["epsilon"] == pytest.approx(4.0, abs=0.002)
        assert promises[name]["meaning"]["accuracy"] == pytest.approx(0.678, abs=1e-3)
    assert "epsilon" not in promises["metric privacy"]
    assert (
        accuracy["record-level, trusted sum"] > accuracy["no privacy"] - 0.04
    )  # .021 over ten seeds
    assert accuracy["record-level, no trust"] > 0.8
    assert accuracy["client-level"] < 0.5
    assert promises["record-level, trusted sum"]["epsilon_of_10_records"] == pytest.approx(
        81.4, abs=0.1
    )
    assert sum(bool(of_strength(worst_guarantee(one))) for one in found.values()) == 3


def test_rounds_and_silos_are_filled_in_from_the_run():
    config = settings("digits-record", "rounds=30")["record-level, trusted sum"]
    assert config.privacy.options["rounds"] == 30
    assert config.privacy.options["silos"] == 10
    again = type(config).model_validate(config.to_dict())
    assert again.privacy == config.privacy


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("local.epochs=2", "epochs"),
        ("privacy.steps=2", "privacy.steps"),
        ("privacy.tolerated=10", "privacy.tolerated"),
        ("privacy.examples=0", "privacy.examples"),
        ("aggregator.name=fedmedian", "aggregator"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_key(change, field):
    with pytest.raises(ValueError, match=field):
        prepare(settings("digits-record", change)["record-level, trusted sum"])


def test_a_delta_that_gives_away_records_is_said_to():
    """Of ten silos' 1,437 records, not of the ten silos."""
    for delta, told in ((0.01, True), (1e-4, False)):
        setup = prepare(
            settings("digits-record", f"privacy.budget.delta={delta}")["record-level, no trust"]
        )
        assert any("records whole" in warning for warning in setup.warnings) == told


def test_a_total_that_leaves_nothing_to_learn_is_said_before_the_run_or_refused():
    for change, told in (("privacy.epsilon=0.002", True), ("privacy.epsilon=4.0", False)):
        federation = prepare(
            settings("digits-record", change, "rounds=2")["record-level, trusted sum"]
        ).federation(Ledgers("memory"))
        federation.begin(2)  # nothing is trained
        assert any("hopeless" in line for line in federation.warnings.said.values()) == told
    with pytest.raises(ValueError, match=r"privacy\.epsilon = 1e-09"):
        settings("digits-record", "privacy.epsilon=1e-9")


def test_columns_that_silos_scale_by_their_own_rows_are_refused(monkeypatch):
    config = settings("digits-record")["record-level, trusted sum"]
    dealt = deal_out(config.data, 0)
    scaled = replace(dealt, dataset=replace(dealt.dataset, local_columns=(0,)))
    monkeypatch.setattr("fedveil_lab.runs.prepare.deal_out", lambda *_: scaled)
    with pytest.raises(FieldError, match="public constants"):
        prepare(config)


def test_patch_features_see_nothing_but_public_images_and_have_one_length():
    images = torch.rand(12, 1, 14, 14, generator=torch.Generator().manual_seed(0))
    learned = learn_patches(images[:6], 5, seed=0)
    features = learned.features(images)
    assert features.shape == (12, 20)
    torch.testing.assert_close(features.norm(dim=1), torch.full((12,), LENGTH))
    torch.testing.assert_close(
        learned.features(images[7:8]), features[7:8], rtol=1e-4, atol=1e-4
    )  # each by itself
    again = learn_patches(images[:6], 5, seed=0)
    assert torch.equal(again.centres, learned.centres)
    with pytest.raises(FieldError, match="patches"):
        learn_patches(images[:, :, :8, :8], 5, seed=0)


def test_components_are_directions_of_the_public_features_or_of_nothing():
    images = torch.rand(40, 1, 14, 14, generator=torch.Generator().manual_seed(0))
    learned = learn_patches(images[:20], 5, seed=0)
    public = learned.features(images[:20])
    for how in ("public", "random"):
        fewer = learned.projected(images[:20], 3, how, seed=0)
        torch.testing.assert_close(
            fewer.directions.T @ fewer.directions, torch.eye(3), rtol=0, atol=1e-5
        )
        found = fewer.features(images)
        assert found.shape == (40, 3)
        torch.testing.assert_close(found.norm(dim=1), torch.full((40,), LENGTH))
        kept = (public @ fewer.directions).square().sum() / public.square().sum()
        most = torch.linalg.svdvals(public)[:3].square().sum() / public.square().sum()
        torch.testing.assert_close(kept, most) if how == "public" else None
        assert how == "public" or kept < most
    with pytest.raises(FieldError, match="there are 20 features"):
        learned.projected(images[:20], 21, "public", seed=0)
    with pytest.raises(FedVeilError, match=r"data\.components"):
        load("digits-record", ["data.components=3"])


def test_ring_features_do_not_change_when_an_image_is_turned_or_mirrored():
    images = torch.rand(40, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    learned = learn_rings(images[:30], 3, [1, 3], 8, seed=0)
    features = learned.features(images)
    assert features.shape == (40, 8)
    torch.testing.assert_close(features.norm(dim=1), torch.full((40,), LENGTH))
    for turned in (images.flip(3), images.rot90(2, (2, 3))):
        one = RingFeatures(
            (1,), learned.learned[:1], learned.shift[:12], learned.scale[:12], torch.eye(12)
        )
        torch.testing.assert_close(one.features(turned), one.features(images), rtol=1e-4, atol=1e-4)


def test_ring_features_are_whitened_on_the_public_images_alone():
    images = torch.rand(
        200, 1, 10, 10, generator=torch.Generator().manual_seed(1)
    ) * torch.linspace(0.2, 1, 10)
    learned = learn_rings(images, 4, [1], 6, seed=0)
    again = learn_rings(images.clone(), 4, [1], 6, seed=0)
    assert torch.equal(learned.directions, again.directions)
    found = learned.features(images)
    torch.testing.assert_close(
        learned.features(images[7:8]), found[7:8], rtol=1e-4, atol=1e-4
    )  # each by itself
    assert learned.features(images[:0]).shape == (0, 6)


@pytest.mark.parametrize(
    ("sizes", "components", "field"), [((9,), 4, "patch_sizes"), ((1,), 40, "components")]
)
def test_ring_features_refuse_images_too_small_or_too_few(sizes, components, field):
    with pytest.raises(FieldError, match=field):
        learn_rings(torch.rand(30, 1, 12, 12), 16, sizes, components, seed=0)
