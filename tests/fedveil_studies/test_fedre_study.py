"""FedRE on forged receipts: parameters and regions of each client's own, and what a file alone can run."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedveil.accounting import Release
from fedveil.calibration import LayerSensitivity
from fedveil.data import SOURCES
from fedveil.data import load as load_data
from fedveil.data.labels import natural_clients
from fedveil.data.pages import Box
from fedveil.engines import Evaluation
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import build_model, score_maps, score_models
from fedveil.learning.losses import dice
from fedveil_lab.attacks.inversion import DLG, Cosine
from fedveil_lab.config import ConfigError, load, parse
from fedveil_lab.config.course import Setting
from fedveil_lab.config.sections import Data
from fedveil_lab.config.tables import options_of
from fedveil_lab.config.variants import configure
from fedveil_lab.grid import Cell, Store
from fedveil_lab.runs.deal import deal_out
from fedveil_lab.runs.prepare import prepare
from fedveil_lab.runs.runner import run
from fedveil_studies.data import sroie
from fedveil_studies.fedre import defence, recovered, weights
from fedveil_studies.fedre.pictures import score_figure
from fedveil_studies.frame import Choices, Reproduction, find
from fedveil_studies.frame.claims import judge
from fedveil_studies.frame.evidence import read_evidence
from fedveil_studies.frame.finding import CANNOT_TELL, CONTRADICTED, HOLDS
from fedveil_studies.frame.reproduction import Selection
from fedveil_studies.frame.result import Result
from fedveil_studies.frame.tables import result_table

STUDY = find("fedre")
TINY = {
    "name": "receipts",
    "rounds": 1,
    "data": {
        "name": "sroie",
        "tile": 32,
        "tiles": 2,
        "test_receipts": 1,
        "clients": 3,
        "holdout": 0.0,
        "sensitive": [
            ["company"],
            ["company", "total"],
        ],  # in so small a tile only a company's name fits
        "public_examples": 2,
    },
    "model": {
        "name": "unet",
        "widths": [4, 8],
        "activation": "softplus",
        "mean": 0.8,
        "deviation": 0.3,
    },
    "local": {"batch_size": 4, "lr": 0.01, "loss": "dice"},
    "scoring": {"method": "estimate", "images": 1, "probes": 2},
    "privacy": {"method": "fedre", "epsilon": 1000.0},
    "metrics": ["iou"],
}


def tiny(privacy=(), **changes):
    return parse({**TINY, **changes, "privacy": {**TINY["privacy"], **dict(privacy)}})


def own(*entries):
    return {"clients": [dict(entry) for entry in entries]}


def test_every_client_of_these_tests_marks_something_and_not_all(receipts):
    clients = deal_out(tiny().data, seed=0).clients
    assert all(client.masks.flatten(1).any(1).all() for client in clients)
    assert all(0 < client.masks.double().mean() < 0.5 for client in clients)
    few, noise = {**TINY["data"], "tiles": 1, "clients": 2}, {}
    for pixels in ("marked", "all"):
        config = tiny(
            {"weighting": "equal"}, data=few, scoring={**TINY["scoring"], "pixels": pixels}
        )
        noise[pixels] = run(config).noise("sigma")
    assert noise["marked"] != pytest.approx(noise["all"], rel=1e-3)  # the marks make the noise


def test_clients_have_the_parameters_that_the_file_gives_them(receipts, tmp_path):
    config = tiny(own({"partitions": [0, 2], "epsilon": 10, "delta": 1e-6}))
    sides = prepare(config).sides
    assert {p: (s.epsilon, s.delta, s.clip) for p, s in sides.items()} == {
        0: (10, 1e-6, 0.2),
        2: (10, 1e-6, 0.2),
    }
    written = tmp_path / "again.toml"
    written.write_text(config.to_toml(), encoding="utf-8")
    assert load(written) == config
    assert load(written).fingerprint() == config.fingerprint() != tiny().fingerprint()
    assert tiny().fingerprint() == tiny({"clients": []}).fingerprint()


def test_clients_that_mark_nothing_do_as_the_file_says_of_each(receipts, tmp_path):
    config = tiny(
        own({"partitions": [1], "unmarked": "uniform"}, {"partitions": [2], "epsilon": 10.0})
    )
    setup = prepare(config)
    assert setup.learner.unmarked == {1: "uniform"}
    assert setup.sides[1] == setup.method.client
    written = tmp_path / "again.toml"
    written.write_text(config.to_toml(), encoding="utf-8")
    assert load(written) == config
    assert config.fingerprint() != tiny(own({"partitions": [2], "epsilon": 10.0})).fingerprint()
    assert "unmarked" not in str(
        tiny(own({"partitions": [2], "epsilon": 10.0})).differing()
    )  # keys stay as they were
    with pytest.raises(ConfigError, match=r"privacy\.clients\[0\]\.unmarked"):
        tiny({"split": "uniform", **own({"partitions": [1], "unmarked": "uniform"})})


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"partitions": [3], "epsilon": 10.0}, "partition"),
        ({"partitions": [-1], "epsilon": 10.0}, "partition"),
        ({"partitions": [], "epsilon": 10.0}, "privacy.clients"),
        ({"epsilon": 10.0}, "privacy.clients"),
        ({"partitions": [0], "epsilom": 10.0}, r"privacy.clients\[0\].epsilom"),
        ({"partitions": [0], "normalised": False}, r"privacy.clients\[0\].normalised"),
        ({"partitions": [0], "epsilon": -1.0}, r"privacy.clients\[0\].epsilon"),
        ({"partitions": [0], "epsilon": "ten"}, r"privacy.clients\[0\].epsilon"),
        ({"partitions": [0, 0], "epsilon": 1.0}, r"privacy.clients\[0\].partitions"),
        ({"partitions": [0], "scores": "public"}, "privacy.clients"),
        ({"partitions": [0], "unmarked": "nothing"}, r"privacy.clients\[0\].unmarked"),
    ],
)
def test_parameters_of_clients_that_do_not_fit_are_refused(entry, field):
    with pytest.raises(ConfigError, match=field):
        tiny(own(entry))


def test_noise_inside_training_is_the_same_for_all():
    with pytest.raises(ConfigError, match="noises inside training"):
        parse(
            {
                **TINY,
                "data": {"name": "breast-cancer", "clients": 3},
                "model": {"name": "logistic"},
                "local": {},
                "metrics": [],
                "privacy": {
                    "method": "record",
                    "examples": 100,
                    "noise_multiplier": 1.0,
                    **own({"partitions": [0], "clip": 2.0}),
                },
            }
        )


def test_figures_of_noise_are_of_each_clients_own_parameters(receipts):
    alike = run(tiny())
    others = run(
        tiny(own({"partitions": [0, 1, 2], "clip": 0.4}))
    )  # all clients: the common clip is nobody's
    assert others.noise("sigma") == pytest.approx(2 * alike.noise("sigma"), rel=1e-6)
    assert others.noise("noise_to_clip") == pytest.approx(alike.noise("noise_to_clip"), rel=1e-6)


def test_public_examples_are_whole_receipts_with_their_regions(receipts):
    dealt = deal_out(tiny().data, seed=0)
    assert len(dealt.public.x) == 2
    assert dealt.public.masks.flatten(1).any(1).all()
    kept = torch.cat([client.x for client in dealt.clients])
    assert len(kept) == 2 * 4
    assert not any(torch.equal(x, other) for x in dealt.public.x for other in kept)


def test_public_examples_without_a_class_are_refused(receipts, monkeypatch):
    def without_forgeries(*given, **named):
        dealt = deal_out(*given, **named)
        return replace(dealt, public=replace(dealt.public, y=torch.zeros_like(dealt.public.y)))

    monkeypatch.setattr("fedveil_lab.runs.prepare.deal_out", without_forgeries)
    with pytest.raises(FieldError, match="public_examples"):
        prepare(tiny())
    prepare(tiny({"split": "uniform", "weighting": "equal"}))  # whose server scores nothing


def test_public_examples_that_are_scored_without_a_class_are_said(receipts, monkeypatch):
    y = torch.zeros(3, 32, 32, dtype=torch.int64)
    y[[0, 2], 5:9] = 1
    masks = torch.zeros(3, 32, 32, dtype=torch.bool)
    masks[1:, 5:9] = True  # the first tile shows a forgery, and marks nothing

    def public(*given, **named):
        dealt = deal_out(*given, **named)
        return replace(
            dealt, public=replace(dealt.public, x=torch.rand(3, 1, 32, 32), y=y, masks=masks)
        )

    monkeypatch.setattr("fedveil_lab.runs.prepare.deal_out", public)

    def said(**scoring):
        return [
            w
            for w in prepare(tiny(scoring={**TINY["scoring"], **scoring})).warnings
            if "that is scored" in w
        ]

    [told] = said(images=1)
    assert "classes [1]: raise scoring.images = 1" in told
    assert said(images=2) == said(images=1, pixels="all") == []


@pytest.mark.parametrize(
    "scores", [{"first": 0.0, "second": math.inf}, {"first": 0.0, "second": 0.0}]
)
def test_scores_that_split_nothing_are_refused(scores):
    with pytest.raises(FieldError, match="scores"):
        LayerSensitivity(50.0, 1e-5, 1.0, 1).split(list(scores.values()))


def test_a_tile_in_which_no_text_fits_is_refused_with_the_least_that_would_do(
    receipts, monkeypatch
):
    wide = [Box(0, 0, 10, 50)]
    monkeypatch.setattr("fedveil_studies.data.sroie.boxes_of", lambda *_: wide)
    with pytest.raises(FieldError, match="at least 50"):
        SOURCES["sroie"].load(tile=32, tiles=1, test_receipts=1)


def test_uniform_noise_needs_neither_regions_nor_public_examples(receipts):
    data = {**TINY["data"], "sensitive": [], "public_examples": 0}
    summary = run(tiny({"split": "uniform", "weighting": "equal", "noise_to_clip": 0.1}, data=data))
    assert summary.noise("noise_to_clip") == pytest.approx(0.1)
    assert 0 <= summary.values["metrics"].get("iou", 0) <= 1
    with pytest.raises(ConfigError, match=r"data\.region"):
        tiny({"split": "uniform"}, data=data)
    whole = {"scoring": {"pixels": "all"}}
    with pytest.raises(ConfigError, match=r"data\.public_examples"):
        tiny(data=data, **whole)
    tiny(data={**data, "public_examples": 2}, **whole)


def test_layers_are_scored_on_all_pixels_where_that_is_asked_for(receipts):
    client = deal_out(tiny().data, seed=0).public
    whole = replace(client, masks=torch.ones_like(client.masks))
    found = {}
    for pixels in ("marked", "all"):
        learner = prepare(tiny(scoring={**TINY["scoring"], "pixels": pixels})).learner
        start = learner.layout.read(learner.model)[None]
        found[pixels] = [learner.public_scores(start, data) for data in (client, whole)]
    assert torch.equal(found["all"][0], found["all"][1])
    assert torch.equal(found["all"][0], found["marked"][1])
    assert not torch.equal(found["all"][0], found["marked"][0])


def test_clients_use_their_scores_again_between_scorings(receipts):
    def noise_of(every):
        model, scoring = {**TINY["model"], "widths": [4]}, {**TINY["scoring"], "every": every}
        data = {**TINY["data"], "tiles": 1, "clients": 2}
        setup = prepare(
            tiny({"weighting": "equal"}, rounds=3, data=data, model=model, scoring=scoring)
        )
        federation = setup.made()
        return [record.client_scales[0] for record in federation.rounds(3)]

    often, seldom = noise_of(1), noise_of(2)
    assert seldom[0] == seldom[1] == often[0]
    assert len({often[0], often[1], seldom[2]}) == 3  # scored on another model
    tiny(scoring={**TINY["scoring"], "every": 2}, clients_per_round=3)
    with pytest.raises(ConfigError, match=r"scoring\.every"):
        tiny(scoring={**TINY["scoring"], "every": 2}, clients_per_round=2)


def test_no_option_of_a_source_is_hidden_by_a_key_of_data():
    for name, source in SOURCES.items():
        assert not set(options_of(source.load)) & set(Data.model_fields), name


def test_published_figures_stand_where_the_study_measures():
    told = STUDY.described
    labels = {row.label for row in told.rows.values()}
    for table, row, setting, figure in STUDY.published:
        if table in told.tables:
            assert row in labels
            assert setting in told.settings
            assert figure in {
                "lpips",
                *(name for part in told.tables[table].parts for name in part.figures),
            }
        else:
            assert table in ("1-doctamper", "2-doctamper", "3-doctamper")


def test_printed_iou_and_f_at_budget_50_are_not_of_the_same_pixels():
    def gap(row, setting):
        iou, f = (STUDY.published["1", row, setting, figure].value for figure in ("iou", "f"))
        return iou - f / (2 - f)  # 0 where both are pooled

    assert abs(gap("no privacy", "central")) < 0.001
    assert abs(gap("eps 10", "fedre")) < 0.01
    assert gap("eps 50", "fedre") == pytest.approx(0.094, abs=0.001)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "setting",
    ["central", "inverse", "public", "one", "blur-lus", "signal", "sound-frozen", "sound-rank"],
)
def test_settings_of_the_study_run_on_made_receipts(receipts, setting):
    data = {"tile": 32, "tiles": 1, "test_receipts": 1, "public_examples": 1, "clients": 2}
    data["sensitive"] = TINY["data"]["sensitive"]
    small = {f"data.{key}": value for key, value in data.items()} | {
        "rounds": 1,
        "model.widths": [4, 8],
    }
    scoring = {"scoring.images": 1, "scoring.probes": 1}
    values = load(
        "fedre-receipts", [f"{key}={value}" for key, value in {**small, **scoring}.items()]
    ).to_dict()
    told = STUDY.described.settings[setting]
    for key, value in told.set.items():
        section, _, name = key.partition(".")
        values[section] = {**values.get(section, {}), name: value}
    privacy = {**told.privacy, **({"rounds": 1} if "rounds" in told.privacy else {})}
    config = configure(parse(values), setting, Setting.model_validate(privacy))
    summary = run(config)
    assert summary.values["replies"]["used"] == config.data.clients
    assert 0 <= summary.values["test_metrics"]["positive_iou"] <= 1
    proven = summary.values["guarantees"]
    assert ("epsilon" in str(proven)) == (
        setting in ("public", "blur-lus", "signal", "sound-frozen", "sound-rank")
    ), proven


def test_a_company_with_and_without_a_full_stop_is_one_client(receipts, tmp_path):
    [file] = tmp_path.glob("sroie2019*.npz")
    arrays = dict(np.load(file))
    keys = [json.loads(text) for text in arrays["key_json"].tolist()]
    keys[4]["company"] += "."
    arrays["key_json"] = np.array([json.dumps(one) for one in keys])
    np.savez(file, **arrays)
    loaded = load_data("sroie", tile=48, tiles=1, test_receipts=0)
    assert loaded.owners == ("shop 0", "shop 1")
    assert loaded.owner.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.data
@pytest.mark.skipif(not SOURCES["sroie"].available, reason="the receipts are not here")
def test_no_company_of_the_real_receipts_is_spelt_twice():
    _, companies = sroie._receipts()
    owner, owners = natural_clients("company", companies, 200)
    assert (len(owner), len(owners)) == (200, 93)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not SOURCES["sroie"].available, reason="the receipts are not here")
def test_a_tiny_table_of_the_real_receipts(tmp_path):
    choices = Choices(scale="tiny", seeds=1)
    reproduction = Reproduction(STUDY, choices)
    cells = [
        reproduction.cell("receipts", "eps-50", name, 0, keys={"rounds": 1})
        for name in ("uniform", "fedre")
    ]
    finished = Store(tmp_path).run(cells)
    for cell in cells:
        outcome = finished.outcomes[cell.key]
        assert outcome.summary.noise("noise_to_clip") > 100  # as the paper's own equations have it
        assert 0 <= outcome.summary.values["test_metrics"]["positive_iou"] < 0.3


def test_maps_of_layer_scores_are_drawn_with_the_score_of_the_region(receipts, tmp_path):
    setup = prepare(tiny())
    public, learner = setup.dealt.public, setup.learner
    vector, layers = learner.layout.read(learner.model), list(learner.layout.groups("module"))
    x, y, region = public.x[:1], public.y[:1], public.masks[0]
    maps = score_maps(learner.model, learner.layout, "dice", vector, x, y, probes=2)
    figure = score_figure(x[0], maps, layers, region)
    scores = score_models(
        learner.model, learner.layout, "dice", vector[None], x, y, region, "estimate", probes=2
    )[0]
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == [
        "image",
        *(f"{n}\nS = {s:.1e}" for n, s in zip(layers, scores.tolist(), strict=True)),
    ]
    assert torch.equal(torch.from_numpy(figure.axes[1].images[0].get_array().data), maps[0])
    figure.savefig(tmp_path / "maps.png")
    for wrong in ({"maps": maps[:-1]}, {"region": region & False}, {"image": x}):
        with pytest.raises(FieldError, match=next(iter(wrong))):
            score_figure(
                **{"image": x[0], "maps": maps, "layers": layers, "region": region, **wrong}
            )


@pytest.mark.slow
def test_the_attack_measures_the_region_apart_from_the_rest(receipts, monkeypatch):
    monkeypatch.setattr(defence, "ATTACK", DLG(steps=4, restarts=0))
    data = {**TINY["data"], "tiles": 1, "clients": 4, "public_examples": 1, "tile": 64}
    data["sensitive"] = [["company", "total", "date", "address"]]
    model, local = (
        {**TINY["model"], "widths": [4]},
        {"batch_size": 1, "lr": 1.0, "loss": "cross_entropy"},
    )
    config = tiny({"split": "uniform", "weighting": "equal"}, data=data, model=model, local=local)
    setup = prepare(config)
    seen = []
    probe = defence.RegionInversion(config)
    setup.made(evaluation=Evaluation(probes=[probe])).run(1, seen.append)
    figures, tiles = seen[0].figures, probe.recovered
    assert set(figures) == set(probe.figures)
    assert 0 <= figures["legible"] <= 1
    assert 0 < len(tiles) <= probe.images
    errors = [
        float((t.reconstruction - t.original)[0, 0][t.mask[0]].square().mean()) for t in tiles
    ]
    assert figures["region_mse"] == pytest.approx(sum(errors) / len(errors))
    unmarked = [replace(c, masks=None) for c in setup.clients]
    with pytest.raises(FieldError, match="sensitive"):
        setup.made(clients=unmarked, evaluation=Evaluation(probes=[probe])).run(1)


def test_the_best_of_all_answers_counts_and_contrast_comes_from_public_tiles(receipts, monkeypatch):
    quick = {"DLG": DLG(steps=3, restarts=0), "direction": Cosine(steps=3)}
    monkeypatch.setattr(defence.TrainedInversion, "attacks", quick)
    monkeypatch.setattr(defence.TrainedInversion, "after", 2)
    data = {**TINY["data"], "tiles": 1, "clients": 4, "public_examples": 1, "tile": 64}
    data["sensitive"] = [["company", "total", "date", "address"]]
    model, local = (
        {**TINY["model"], "widths": [4]},
        {"batch_size": 1, "lr": 1.0, "loss": "cross_entropy"},
    )
    config = tiny({"split": "uniform"}, data=data, model=model, local=local, rounds=2)
    cell = Cell("tiny", config, (STUDY.probes["trained"](config),))
    outcome = Store(None).run([cell]).outcomes[cell.key]
    first, second = (row["figures"] for row in outcome.rows)
    assert all(map(math.isnan, first.values()))
    answers = [
        second[f"{kind} region_ssim"] for kind in ("DLG", "DLG, set", "direction", "direction, set")
    ]
    assert second["region_ssim"] == max(answers)
    assert STUDY.measures["probed"]([outcome], "region_ssim").value == max(answers)
    known = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grey = 0.7 + 0.001 * (known[:1] - 0.5)  # what a clip leaves of the first one
    assert float((defence.in_contrast(grey, known) - known[:1]).abs().max()) < 0.15


def test_text_is_legible_as_far_as_its_nearest_glyph_is_the_right_one():
    x, mask = torch.ones(1, 1, 40, 35, dtype=torch.float64), torch.ones(1, 40, 35, dtype=torch.bool)
    g = torch.Generator().manual_seed(0)
    x[..., :20, :] = torch.rand(
        1, 1, 20, 35, generator=g, dtype=torch.float64
    )  # ten letters, then blank paper
    x[..., :10, 28:] = x[..., :10, :7]  # the last one of the first line looks like the first one
    right = recovered.Recovered(x, mask, 0.5 * x + 0.2)
    assert recovered.legibility([right]) == {"legible": 1.0, "blind": 0.2, "glyphs": 10.0}
    wrong = recovered.Recovered(x, mask, x.roll(7, 3))  # every letter in the place of its neighbour
    assert recovered.legibility([wrong])["legible"] == pytest.approx(
        0.1
    )  # at the first line's beginning its like stands
    nothing = replace(right, mask=~mask)
    assert recovered.legibility([nothing]) == {"legible": 0.0, "blind": 0.0, "glyphs": 0.0}


def test_updates_of_low_rank_carry_less_noise_and_begin_where_the_whole_does_not_move():
    shape = {"input_shape": (1, 32, 32), "outputs": 2, "seed": 0, "widths": (8, 16)}
    whole, low = build_model("unet", **shape), build_model("unet", **shape, rank=2)
    sizes = [Layout.from_module(net).size for net in (whole, low)]
    learned = sum(
        9 * 2 * a + 2 * b for a, b in ((1, 8), (8, 8), (8, 16), (16, 16), (24, 8), (8, 8))
    )
    norms = sum(2 * b for b in (8, 8, 16, 16, 8, 8))
    assert sizes[1] == learned + norms + 8 * 2 + 2 < sizes[0]
    x = torch.rand(2, 1, 32, 32)
    before = low(x)
    for name, value in low.named_parameters():
        if name.endswith("reduce"):  # what multiplies it begins at 0
            value.data.fill_(7.0)
    assert torch.equal(low(x), before)
    low.down[0][0].expand.data.fill_(1.0)
    assert not torch.allclose(low(x), before)
    with pytest.raises(FieldError, match="rank"):
        build_model("unet", **shape, rank=-1)


def test_tables_show_what_the_paper_printed_of_sets_that_are_not_at_hand():
    place = ("no privacy", "central", "iou")
    shown = result_table(
        "1: any", [Result(*place), Result("no privacy", "federated", "iou")], STUDY
    )
    column = shown.header.index("paper, DocTamper: data not at hand")
    assert [row[column] for row in shown.rows] == ["0.575 ±0.012", "-"]
    assert (
        "paper, DocTamper: data not at hand"
        not in result_table("6: any", [Result(*place)], STUDY).header
    )


def test_clients_put_noise_on_their_sensitive_pixels_alone(receipts):
    plain, noisy = (
        deal_out(tiny(data={**TINY["data"], "pixel_noise": s}).data, seed=0) for s in (0.0, 0.4)
    )
    for before, after in zip(plain.clients, noisy.clients, strict=True):
        moved = (after.x - before.x)[:, 0]
        assert not moved[~before.masks].any()
    moved = torch.cat(
        [(b.x - a.x)[:, 0][a.masks] for a, b in zip(plain.clients, noisy.clients, strict=True)]
    )
    assert float(moved.std()) == pytest.approx(0.4, rel=4 / math.sqrt(2 * len(moved)))
    assert torch.equal(plain.public.x, noisy.public.x)
    for wrong in (
        {**TINY["data"], "pixel_noise": -1.0},
        {"name": "digits", "clients": 3, "pixel_noise": 0.1},
    ):
        with pytest.raises(FieldError, match="pixel_noise"):
            deal_out(Data.model_validate(wrong), seed=0)


def test_frozen_levels_carry_no_noise_and_stay(receipts):
    config = tiny(model={**TINY["model"], "frozen": 1}, rounds=1)
    learner = prepare(config).learner
    whole = prepare(tiny()).learner
    names = set(whole.layout.names) - set(learner.layout.names)
    assert names == {name for name in whole.layout.names if name.startswith("down.0.")}
    summary = run(config)
    assert summary.values["replies"]["used"] == 3
    with pytest.raises(FieldError, match="frozen"):
        prepare(tiny(model={**TINY["model"], "frozen": 3}))


def test_a_budget_split_by_signal_grows_with_the_public_gradient(receipts):
    learner = prepare(tiny(scoring={"method": "signal", "images": 2})).learner
    public = deal_out(tiny().data, seed=0).public
    start = learner.layout.read(learner.model)[None]
    [scores] = learner.public_scores(start, public)
    module = learner.model.eval()
    module.zero_grad()
    rows = public.masks.flatten(1).any(1).nonzero().reshape(-1)[:2].sort().values
    dice(module(public.x[rows]), public.y[rows]).backward()
    lengths = []
    for slices in learner.layout.groups("module").values():
        flat = torch.cat(
            [dict(module.named_parameters())[n].grad.reshape(-1) for n in learner.layout.names]
        )
        lengths.append(torch.cat([flat[s] for s in slices]).norm())
    assert scores.tolist() == pytest.approx((1 / torch.stack(lengths)).tolist(), rel=1e-4)
    with pytest.raises(FieldError, match="method"):
        score_maps(module, learner.layout, "dice", start[0], public.x[:1], public.y[:1], "signal")


def test_sharpness_of_edges_is_a_detector_of_six_parameters(receipts):
    summary = run(
        parse(
            {
                **TINY,
                "privacy": {"method": "vanilla"},
                "model": {"name": "sharpness"},
                "scoring": {},
            }
        )
    )
    assert summary.values["replies"]["used"] == 3
    net = build_model("sharpness", input_shape=(1, 32, 32), outputs=2, seed=0)
    assert sum(p.numel() for p in net.parameters()) == 6
    x = torch.full((1, 1, 32, 32), 0.5)
    x[..., 16:] = 0.9  # one edge: only near it does anything differ from paper
    scores = net(x)[0]
    assert torch.allclose(scores[:, :, :8], scores[:, :1, :1])
    assert not torch.allclose(scores[:, :, 15], scores[:, :, 0])
    for wrong in ({"window": 4}, {"window": 33}):
        with pytest.raises(FieldError):
            build_model("sharpness", input_shape=(1, 32, 32), outputs=2, seed=0, **wrong)


def test_pictures_are_figures_of_the_study():
    reproduction = Reproduction(STUDY, Choices(scale="tiny"))
    assert Selection.of(reproduction, figures=["2", "4"]).figures == ("2", "4")
    assert reproduction.cells(Selection.of(reproduction, figures=["4"])) == []
    with pytest.raises(FieldError, match="--figure"):
        Selection.of(reproduction, figures=["44"])


def seen_with(*received, **federation):
    releases = {p: (Release("model", model),) for p, model in enumerate(received)}
    given = SimpleNamespace(**federation)
    given.layout = Layout.from_shapes({"a.weight": (1,), "b.weight": (2,)})
    return SimpleNamespace(
        received=releases, federation=given, record=SimpleNamespace(seconds=1.0, client_scales={})
    )


def test_a_model_of_zeros_gets_the_weight_of_the_least_scores(monkeypatch):
    monkeypatch.setattr(weights.ServerWeights, "_client", lambda self, seen: 0.25)
    # scores ln 3 and 0 in both layers: weights 1/4 and 3/4; with zeros in place of the first both weigh 1/2
    server = SimpleNamespace(scorer=lambda models: models[:, :2])
    seen = seen_with(torch.full((3,), math.log(3)), torch.zeros(3), server=server)
    figures = weights.ServerWeights(tiny())(seen)
    assert figures["largest"] == pytest.approx(1.5)
    assert figures["crafted"] == pytest.approx(1.0)
    assert figures["loud"] == pytest.approx(0.0, abs=1e-12)
    assert figures["client_scoring"] == pytest.approx(0.5)
    assert figures["scoring"] > 0
    assert figures["noise"] == 1.0  # there is none
    # as printed, with scores 100 ln 3 and 0: 1 / (2 alpha) of the second client is (1 + 3^100) / 2
    assert figures["printed"] == pytest.approx(100 * math.log10(3) - math.log10(2))
    seen.record.client_scales = {0: (3.0, 1.0), 1: (1.0, 0.0)}
    # weights 1/4 and 3/4: (9/16 + 9/16) + 2 (1/16 + 0) over a quarter of (9 + 1) + 2 (1 + 0)
    assert weights.ServerWeights(tiny())(seen)["noise"] == pytest.approx(
        (18 / 16 + 2 / 16) / (12 / 4)
    )
    with pytest.raises(FieldError, match="public_examples"):
        weights.ServerWeights(tiny())(seen_with(torch.ones(3), server=SimpleNamespace(scorer=None)))


def test_weights_of_a_real_round_and_the_time_of_scoring(receipts):
    config = tiny(data={**TINY["data"], "tiles": 1, "clients": 2})
    setup, seen = prepare(config), []
    probe = weights.ServerWeights(config)
    setup.made(evaluation=Evaluation(probes=[probe])).run(1, seen.append)
    figures = seen[0].figures
    assert set(figures) == set(probe.figures)
    assert 1 <= figures["largest"] < 2
    assert figures["loud"] < 1 < figures["crafted"]  # large scores weigh less, none more
    assert figures["client_scoring"] > 0


def test_a_few_clients_a_round_are_drawn_as_in_algorithm_1(receipts):
    summary = run(
        tiny(data={**TINY["data"], "tiles": 1, "public_examples": 1}, rounds=2, clients_per_round=2)
    )
    assert summary.values["replies"]["used"] == 4


def test_noise_on_pixels_leaves_the_rest_and_drowns_the_text(receipts):
    data = {**TINY["data"], "tiles": 1, "clients": 4, "public_examples": 1, "tile": 64}
    data["sensitive"] = [["company", "total", "date", "address"]]
    clients = deal_out(tiny(data=data).data, seed=0).clients
    figures = defence.NoisedPixels(tiny())(seen_with(clients=clients))
    assert set(figures) == set(defence.NoisedPixels.figures)
    assert all(figures[f"rest_mse at {level}"] == 0 for level in defence.LEVELS)
    assert (
        0.005 < figures["region_mse at 0.1"] < 0.01 < 0.05 < figures["region_mse at 0.4"] < 0.16
    )  # cut to the range
    assert figures["legible at 0.1"] == 1.0 > figures["legible at 1.0"]
    assert figures["glyphs at 0.1"] > 3
    forged = [
        replace(c, y=torch.ones_like(c.y)) for c in clients
    ]  # whose every pixel the attacker knows
    with pytest.raises(FieldError, match="sensitive"):
        recovered.tiles_of(forged)


@pytest.mark.slow
def test_shares_from_few_images_come_nearer_with_their_number(receipts, monkeypatch):
    monkeypatch.setattr(weights, "DIRECTIONS", 4)
    monkeypatch.setattr(weights, "FEW", (1, 4))
    names = [
        f"{when}{what}" for when in ("", "trained ") for what in ("of 1", "of 4", "floor", "as run")
    ]
    monkeypatch.setattr(weights.FewImages, "figures", names)
    data = {
        **TINY["data"],
        "tiles": 3,
        "clients": 1,
        "sensitive": [["company", "total", "date", "address"]],
    }
    config = tiny(data=data, model={**TINY["model"], "widths": [4]})
    setup, seen = prepare(config), []
    setup.made(evaluation=Evaluation(probes=[weights.FewImages(config)])).run(1, seen.append)
    figures = seen[0].figures
    for when in ("", "trained "):
        assert 0 < figures[f"{when}of 4"] < figures[f"{when}of 1"] < 1
        assert figures[f"{when}floor"] < figures[f"{when}of 1"]


def test_few_images_are_compared_with_many_only_where_enough_are_marked(receipts):
    client = SimpleNamespace(masks=None)
    with pytest.raises(FieldError, match="sensitive"):
        weights.FewImages(tiny())(seen_with(clients=[client], learner=prepare(tiny()).learner))


@pytest.mark.parametrize(
    ("values", "verdict"), [([0.01, 0.012, 0.014], HOLDS), ([0.1, 0.11, 0.12], CONTRADICTED)]
)
def test_ten_images_suffice_where_the_shares_stay_within_a_twentieth(tmp_path, values, verdict):
    place = {"row": STUDY.described.rows["ratio-01"].label, "setting": "fedre"}
    rows = [
        place | {"figure": figure, "values": values}
        for figure in ("10 images", "trained, 10 images")
    ]
    [claim] = [c for c in STUDY.described.claims if ("images", "10 images") in c.figures]
    assert judge(claim, evidence_of(tmp_path, "images", rows)).verdict == verdict
    answered = {a for c in STUDY.described.claims for a in c.answers}
    assert answered == set(STUDY.described.statements)


@pytest.mark.parametrize(
    ("larger", "smaller", "verdict"),
    [
        ([0.5, 0.52, 0.54], [0.3, 0.33, 0.31], HOLDS),
        ([0.3, 0.33, 0.31], [0.5, 0.52, 0.54], CONTRADICTED),
        ([0.06, 0.07, 0.05], [0.05, 0.06, 0.07], CANNOT_TELL),  # neither learned
    ],
)
def test_a_larger_epsilon_is_set_against_a_smaller_one_of_the_same_setting(
    tmp_path, larger, smaller, verdict
):
    place = {"setting": "fedre", "figure": "iou"}
    rows = [
        place | {"row": "eps 50", "values": larger},
        place | {"row": "eps 10", "values": smaller},
    ]
    rows.append(
        {"setting": "blur-lus-10", "figure": "iou", "row": "eps 10", "values": smaller}
    )  # one row alone
    [claim] = [
        c
        for c in STUDY.described.claims
        if c.expect == "above the other row" and ("1", "iou") in c.figures
    ]
    found = judge(claim, evidence_of(tmp_path, "1", rows))
    assert found.verdict == verdict
    assert len(found.rows) == 1


@pytest.mark.parametrize(
    ("gained", "verdict"),
    [((0.02, 0.021, 0.022), "holds"), ((-0.05, -0.05, -0.049), "contradicted"), ((0, 0, 0), None)],
)
def test_a_gain_that_grows_with_the_clients_is_the_gain_of_ten_less_that_of_two(
    tmp_path, gained, verdict
):
    base = [0.3, 0.2, 0.1] if verdict else [0.1, 0.1, 0.1]  # guessing has .087
    rows = [
        {
            "row": f"{budget}, {clients} clients",
            "setting": setting,
            "figure": "iou",
            "values": values,
        }
        for budget in ("eps 50", "eps 10", "noise .1 of the clip", "noise 1 of the clip")
        for clients, gain in (
            (2, (0.01, 0, 0.02)),
            (10, [a + b for a, b in zip((0.01, 0, 0.02), gained, strict=True)]),
        )
        for setting, values in (
            ("mean", base),
            ("fedre", [a + b for a, b in zip(base, gain, strict=True)]),
        )
    ]
    [claim] = [c for c in STUDY.described.claims if c.expect == "grows with clients"]
    found = judge(claim, evidence_of(tmp_path, "clients", rows))
    assert found.verdict == (verdict or "cannot tell")
    assert len(found.rows) == 4
    if verdict:
        assert found.rows[0].difference.values == pytest.approx(gained)
    lacking = [row for row in rows if row["setting"] == "mean"]
    (tmp_path / "less").mkdir()
    assert {
        row.text for row in judge(claim, evidence_of(tmp_path / "less", "clients", lacking)).rows
    } == {""}


def evidence_of(folder, name, rows):
    plain = {
        "seeds": [0, 1, 2],
        "draws": [0] * 3,
        "chance": None,
        "cells": ["a", "b", "c"],
        "noise": {},
    }
    table = {
        "study": "fedre",
        "table": name,
        "scale": "small",
        "readings": [],
        "rows": [plain | row for row in rows],
    }
    (folder / "small").mkdir()
    (folder / "small" / f"table-{name}.json").write_text(json.dumps(table), encoding="utf-8")
    [evidence] = read_evidence(folder, STUDY)
    return evidence
