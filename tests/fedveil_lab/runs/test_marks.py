"""Regions of a configuration: what they mark, what is refused, what is said, and the blanked rival."""

import tomllib

import numpy as np
import pytest
import torch

from fedveil.data import DataSet
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.learning.lots import Lots
from fedveil.learning.regions import blanked
from fedveil_lab.config import ConfigError, parse
from fedveil_lab.config.sections import Data
from fedveil_lab.games.roles import AuditedConfig, World
from fedveil_lab.runs import run
from fedveil_lab.runs.deal import deal_out
from fedveil_lab.runs.marks import marked
from fedveil_lab.runs.prepare import check, prepare
from fedveil_lab.runs.region import without_marked
from fedveil_lab.runs.runner import Silent

REGION = {
    "method": "record",
    "unit": "region",
    "relation": "replace-one",
    "noise_multiplier": 4.0,
    "clip": 0.5,
    "examples": 10,
}
LOWER = [4, 0, 8, 8]


class Listening(Silent):
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def spec(data, privacy=None, **changes):
    values = {"name": "tiny", "rounds": 2, "data": data, "model": {"name": "logistic"}}
    return parse({**values, "privacy": privacy or REGION, **changes})


def digits(region=LOWER, **more):
    return {"name": "digits", "clients": 3, "region": region, **more}


@pytest.fixture
def table(tmp_path):
    """Patients with an age, a sex (of which one is missing), a cost; ill or not."""
    rng = np.random.default_rng(0)
    lines = ["age,sex,cost,ill"]
    for i, age in enumerate(rng.integers(0, 100, 30)):
        lines.append(f"{age},{'fm'[i % 2] if i else ''},{rng.integers(0, 1000)},{int(age > 50)}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return {
        "name": "table",
        "path": str(tmp_path / "t.csv"),
        "target": "ill",
        "classes": 2,
        "clients": 2,
        "columns": {"age": [0, 100], "sex": ["f", "m"], "cost": [0, 1000]},
        "missing": {"sex": "indicator"},
    }


def masks_of(config):
    return [client.masks for client in prepare(config).clients]


# ---- what is marked


def test_a_rectangle_marks_the_same_pixels_of_every_image():
    for masks in masks_of(spec(digits())):
        assert not masks[:, :4].any()
        assert masks[:, 4:].all()


def test_several_rectangles_are_marked_together():
    for masks in masks_of(spec(digits([[0, 0, 1, 8], [7, 0, 8, 8]]))):
        assert masks[:, (0, 7)].all()
        assert not masks[:, 1:7].any()


def test_a_column_of_texts_is_marked_whole_with_the_sign_that_it_is_missing(table):
    for masks in masks_of(spec({**table, "region": ["sex"]})):
        assert masks.tolist() == [[False, True, True, True, False]] * len(masks)


@pytest.mark.parametrize(
    ("named", "wanted"),
    [(["cost", "age"], [1, 0, 0, 0, 1]), (["age", "sex"], [1, 1, 1, 1, 0])],
)
def test_two_columns_in_any_order(table, named, wanted):
    for masks in masks_of(spec({**table, "region": named})):
        assert (masks.int() == torch.tensor(wanted)).all()


def test_names_of_columns_follow_the_numbers_that_they_become(table):
    dataset = deal_out(spec({**table, "region": ["sex"]}).data, 0).dataset
    assert dataset.columns == ("age", "sex", "sex", "sex", "cost")
    assert len(dataset.columns) == dataset.x.shape[1]


def test_other_methods_see_no_marks():
    """Their bits and figures stay as they were, whatever the region."""
    assert masks_of(spec(digits(), {"method": "vanilla"})) == [None] * 3


def test_a_run_of_an_audit_has_the_same_marks_also_in_the_stand_ins_place():
    world = World(target=2, colluders=(0, 1), inside=False)
    setup = prepare(AuditedConfig.of(spec(digits()), world))
    for client in setup.clients:
        assert client.masks[:, 4:].all()
        assert not client.masks[:, :4].any()


def test_a_file_that_is_written_again_has_the_same_region(table):
    for data in (digits(), digits([[0, 0, 1, 8], [7, 0, 8, 8]]), {**table, "region": ["sex"]}):
        config = spec(data)
        assert parse(tomllib.loads(config.to_toml())) == config


# ---- the promise


def test_the_content_of_a_region_moves_nothing_but_the_noised_differences(table, monkeypatch):
    """Two files that differ in the marked content of one patient: the part without noise is the same to the bit."""
    seen = []

    def watched(self, client):
        found = plain(self, client)
        seen.append(found.clone())
        return found

    plain = Lots.blanked_sum
    monkeypatch.setattr(Lots, "blanked_sum", watched)
    path, table = table["path"], {**table, "holdout": 0.0}
    run(spec({**table, "region": ["sex", "cost"]}, rounds=1))
    with open(path) as file:
        lines = file.read().splitlines()
    age, _, _, ill = lines[3].split(",")
    lines[3] = f"{age},,1000,{ill}"  # another cost, and a sex that is missing
    other = path.replace("t.csv", "u.csv")
    with open(other, "w") as file:
        file.write("\n".join(lines))
    run(spec({**table, "path": other, "region": ["sex", "cost"]}, rounds=1))
    assert len(seen) == 4
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    seen.clear()
    run(spec({**table, "path": other, "region": ["sex"]}, rounds=1))
    run(spec({**table, "region": ["sex"]}, rounds=1))
    assert not all(torch.equal(*pair) for pair in zip(seen[:2], seen[2:], strict=True))


def test_a_run_says_what_it_protects_and_what_it_does_not():
    listening = Listening()
    summary = run(spec(digits(), rounds=1), progress=listening)
    assert "region, local" in summary.values["guarantee"]
    assert any("marked are 50% of the inputs" in line for line in listening.said)
    assert any("labels" in line and "who is there" in line for line in listening.said)


# ---- what is refused


@pytest.mark.parametrize(
    ("region", "field"),
    [
        (None, "data.region"),
        ([0, 0, 8, 8], "data.region"),
        ([[0, 0, 4, 8], [4, 0, 8, 8]], "data.region"),
        ([4, 0, 4, 8], "data.region"),
        ([4, 0, 9, 8], "data.region"),
        (["age"], "data.region"),
    ],
)
def test_regions_of_everything_nothing_or_other_data_are_refused(region, field):
    with pytest.raises(FieldError) as refused:
        check(spec(digits(region)))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "region", [["weight"], ["ill"], ["age", "sex", "cost"], [0, 0, 1, 1], ["Age"]]
)
def test_columns_that_are_not_there_or_all_of_them_are_refused(table, region):
    with pytest.raises(FieldError) as refused:
        check(spec({**table, "region": region}))
    assert refused.value.field == "data.region"


@pytest.mark.parametrize("region", [[], "age", ["age", "age"], ["age", 1], [1.0, 0, 2, 2]])
def test_regions_of_another_form_are_refused(region):
    with pytest.raises(ConfigError, match=r"data\.region"):
        spec(digits(region))


def test_columns_without_names_are_refused():
    with pytest.raises(FieldError, match="have no names"):
        check(spec({"name": "breast-cancer", "clients": 2, "region": ["worst radius"]}))


def test_no_layer_is_scored_on_columns(table):
    scored = {"method": "fedre"}
    with pytest.raises(ConfigError, match=r"data\.region"):
        spec({**table, "region": ["sex"]}, scored)


@pytest.mark.parametrize(
    "privacy",
    [
        {"blank": 1e300},
        {"relation": "add/remove"},
        {"sum": "trusted"},
        {"blank": float("nan")},
    ],
)
def test_promises_that_do_not_hold_are_refused(privacy):
    with pytest.raises((FieldError, ConfigError)):
        check(spec(digits(), {**REGION, **privacy}))


def test_each_silo_scales_no_marked_column_by_its_own_rows(table):
    own = {**table, "columns": ["age", "cost"], "scale": "client", "missing": {}, "region": ["age"]}
    with pytest.raises(FieldError) as refused:
        check(spec(own))
    assert refused.value.field == "data.scale"


@pytest.mark.parametrize(
    ("data", "model", "field"),
    [
        ({"pixel_noise": 0.1}, {}, "data.pixel_noise"),
        ({"blanked": 0.0}, {}, "data.blanked"),
        ({"patches": 4, "public_examples": 16}, {}, "data.patches"),
    ],
)
def test_what_mixes_or_changes_marked_content_first_is_refused(data, model, field):
    with pytest.raises(FieldError) as refused:
        check(spec(digits(**data)))
    assert refused.value.field in (field, "data.pixel_noise", "pixel_noise")


def documents(masks):
    """A set that brings its marks, of 4x4 images."""
    regions = masks.to(torch.uint8)
    x = torch.rand(len(masks), 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(len(masks), dtype=torch.int64)
    return DataSet(name="own", x=x, y=y, classes=2, regions=regions, region_names=("name",))


def test_marks_of_a_set_and_a_region_are_two_answers():
    masks = torch.zeros(6, 4, 4, dtype=torch.bool)
    masks[:, 2:] = True
    dataset = documents(masks)
    client = ClientData(dataset.x, dataset.y, masks=masks)
    config = spec(digits())
    with pytest.raises(FieldError, match="two answers"):
        marked(config, dataset, [client], config.privacy.build(config.aggregator))


def test_masks_that_follow_the_pixels_are_refused_and_others_are_taken():
    dataset = documents(torch.zeros(6, 4, 4, dtype=torch.bool))
    config = spec(digits(None))
    method = config.privacy.build(config.aggregator)
    followed = ClientData(dataset.x, dataset.y, masks=dataset.x > 0.5)
    with pytest.raises(FieldError, match="threshold"):
        marked(config, dataset, [followed], method)
    drawn = torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(1)) > 0.5
    own = ClientData(dataset.x, dataset.y, masks=drawn)
    assert marked(config, dataset, [own], method) == [own]


# ---- the rival: what is marked is blanked


def test_a_blanked_set_is_what_blanking_makes_of_its_clients(table):
    region = {**table, "region": ["sex", "age"]}
    plain = prepare(spec(region)).clients
    hidden = prepare(spec({**region, "blanked": 0.5}, {"method": "vanilla"})).clients
    for one, other in zip(plain, hidden, strict=True):
        assert torch.equal(blanked(one, 0.5).x, other.x)
        assert torch.equal(other.test_x[:, :4], torch.full_like(other.test_x[:, :4], 0.5))
        assert torch.equal(one.test_x[:, 4:], other.test_x[:, 4:])


def test_targets_of_marked_pixels_are_blanked_too():
    dataset = documents(torch.zeros(6, 4, 4, dtype=torch.bool))
    pixels = torch.ones(6, 4, 4, dtype=torch.int64)
    dataset = DataSet(name="own", x=dataset.x, y=pixels, test_x=dataset.x, test_y=pixels, classes=2)
    found = without_marked(
        Data(name="digits", clients=1, region=[2, 0, 4, 4], blanked=0.0), dataset
    )
    for x, y in ((found.x, found.y), (found.test_x, found.test_y)):
        assert not x[:, :, 2:].any()
        assert not y[:, 2:].any()
        assert y[:, :2].all()


def test_blanking_goes_with_a_region():
    with pytest.raises(ConfigError, match=r"data\.blanked"):
        spec({"name": "digits", "clients": 2, "blanked": 0.0}, {"method": "vanilla"})
    with pytest.raises(FieldError, match="blank"):
        check(spec(digits(blanked=1e300), {"method": "vanilla"}))
