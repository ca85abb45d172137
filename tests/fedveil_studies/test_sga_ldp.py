"""The SGA-LDP study: what it took from the paper, its probe by hand, and that it runs on the real blood cells."""

import math
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from fedveil.data import SOURCES
from fedveil.learning import build_model
from fedveil_lab.attacks import ServerView
from fedveil_lab.config import load, parse
from fedveil_lab.games.membership import MembershipView
from fedveil_lab.grid import Cell, Store
from fedveil_lab.runs import run
from fedveil_lab.runs.prepare import prepare
from fedveil_studies.frame import Choices, Reproduction, find
from fedveil_studies.sga_ldp import LOSSES, phase, worth

STUDY = find("sga-ldp")
ROW = STUDY.label("flip")


def test_the_papers_tables_agree_with_its_table_v():
    found = {
        (table, setting, figure): p for (table, _, setting, figure), p in STUDY.published.items()
    }
    assert {row for _, row, _, _ in STUDY.published} == {ROW}
    for (table, setting, figure), published in found.items():
        assert published == found["V", setting, figure], (table, setting, figure)
    for figure in (
        "accuracy",
        "F1",
        "membership AUC",
    ):  # no defence is best and leaks most, SGA-LDP lies between
        assert (
            found["V", "static", figure].value
            < found["V", "sga", figure].value
            < found["V", "vanilla", figure].value
        )


def test_every_printed_figure_has_a_place_in_a_table():
    study = Reproduction(STUDY, Choices())
    placed = {
        (t, m.row, m.setting, m.figure)
        for t in study.tables
        for m in study.measurements(t)
        if m.published is not None
    }
    assert placed == set(STUDY.published)


def test_on_imagenet_s_features_nothing_but_the_features_is_another():
    plain, other = (
        Reproduction(STUDY, Choices(scale="paper", readings=readings)).cell(
            "blood", "flip", "sga", 0
        )
        for readings in ((), ("imagenet",))
    )
    ours, theirs = plain.config.to_dict(), other.config.to_dict()
    assert ours["data"].pop("patches") == 64
    assert "patches" not in theirs["data"]
    assert theirs["model"]["name"] == "efficientnet_lite0"
    assert theirs["model"]["train"] == ["head"]
    assert {**ours, "model": None} == {**theirs, "model": None}
    model = other.config.model
    made = {**model.options, "weights": "none", "pixels": 32}
    head = build_model(model.name, input_shape=(3, 28, 28), outputs=8, seed=0, **made)
    assert sum(one.numel() for one in head.parameters()) == 10_248
    by_number = {"data.components": 2}
    kept = Reproduction(STUDY, Choices(readings=("imagenet",)))
    assert kept.cell("blood", "n30", "thrice", 0, keys=by_number).config.model.name == "logistic"


def test_settings_differ_in_the_rule_alone():
    study = Reproduction(STUDY, Choices(scale="paper"))
    config = {name: study.cell("blood", "flip", name, 0).config for name in STUDY.settings}
    assert config["vanilla"].privacy.method == "vanilla"
    static, printed = (
        config["static"].privacy.build(None).client,
        config["sga"].privacy.build(None).client,
    )
    assert static.static
    assert not printed.static
    assert (printed.epsilon_min, printed.epsilon_max, printed.clip, printed.similarity) == (
        1,
        5,
        1,
        "update",
    )
    assert config["released"].privacy.build(None).client.similarity == "released"
    assert config["section-b"].privacy.build(None).client.trust == "central"
    for name in [name for name in config if "aggregator" not in STUDY.described.settings[name].set]:
        one = config[name]
        assert (one.rounds, one.local.epochs, one.local.batch_size, one.data.alpha) == (
            100,
            5,
            32,
            0.1,
        ), name
        assert one.malicious.share == 0.2, name
    clean = study.cell("blood", "clean", "sga", 0).config
    assert not clean.malicious.acting
    assert clean.malicious.who(30, 0) == config["sga"].malicious.who(30, 0)


def tiny(**privacy):
    values = {
        "name": "tiny",
        "rounds": 2,
        "data": {"name": "digits", "clients": 5, "partition": "dirichlet", "alpha": 0.5},
        "model": {"name": "logistic"},
        "malicious": {"behaviour": "label-flip", "source": 3, "target": 8, "share": 0.4},
    }
    return parse({**values, "privacy": privacy})


def test_what_a_cosine_is_worth_by_simulation():
    generator, d, plain, step, noise = torch.Generator().manual_seed(0), 40, 0.6, 0.8, 1.5
    signal = torch.zeros(d, dtype=torch.float64)
    signal[0] = step
    update = torch.zeros(d, dtype=torch.float64)
    update[0], update[1] = plain, math.sqrt(1 - plain**2)
    draws = torch.randn(20_000, d, generator=generator, dtype=torch.float64) * noise / math.sqrt(d)
    cosines = F.cosine_similarity(signal + draws, update[None]).clamp(min=0)
    assert worth(plain, step, noise, d) == pytest.approx(float(cosines.mean()), rel=0.03)
    assert worth(plain, step, 0.0, d) == pytest.approx(plain)


def test_the_premise_reads_cosines_off_the_noise():
    values = {"epsilon_min": 1e7, "epsilon_max": 1.001e7}
    config = tiny(method="sga-ldp", **values)
    summary = run(config, probes=[STUDY.probes["premise"](config)])
    first, second = (row["figures"] for row in summary.rows)
    assert first["cosine"] == pytest.approx(0, abs=1e-6)  # nobody has a reference yet
    assert 0.1 < second["cosine"] <= 1
    assert second["step"] > 0


def test_the_noise_is_its_mean_power_over_clients():
    powers, sigma = {}, 0.0
    labels = [int(n) for n in torch.bincount(SOURCES["digits"].load().y)]
    static = {"method": "sga-ldp", "epsilon_min": 2.0, "epsilon_max": 2.0}
    for name, privacy in (
        ("vanilla", {"method": "vanilla"}),
        ("static", static),
        ("sga", {"method": "sga-ldp"}),
    ):
        summary = run(tiny(**privacy), probes=[STUDY.probes["watch"](tiny())])
        powers[name] = [row["figures"]["noise power"] for row in summary.rows]
        sigma = summary.noise("sigma") if name == "static" else sigma
        assert summary.values["data"]["largest_class"] == max(labels) / sum(labels)
    assert powers["vanilla"] == [0, 0]
    assert powers["static"] == pytest.approx([sigma**2] * 2)
    assert (
        powers["sga"][1] <= powers["sga"][0]
    )  # nobody has a reference in the first round: the least budget
    watch, scales = STUDY.probes["watch"](tiny()), {0: (1.0,), 1: (3.0,), 2: ()}
    seen = SimpleNamespace(
        models=torch.zeros(1, 1),
        record=SimpleNamespace(round=SimpleNamespace(report={}), client_scales=scales),
    )
    assert watch(seen) == {"noise power": 5.0}


def test_membership_is_the_auc_of_the_last_models_loss():
    watch, setup = STUDY.probes["watch"](tiny()), prepare(tiny())
    watch.begin(setup)
    model = torch.randn(650, generator=torch.Generator().manual_seed(0))
    for models in (torch.zeros(1, 650), model[None]):
        watch(
            SimpleNamespace(
                models=models,
                record=SimpleNamespace(round=SimpleNamespace(report={}), client_scales={}),
            )
        )
    [found] = type(watch).conclude([watch])
    linear = setup.learner.layout.unflatten(model)
    weight, bias = linear["dense.weight"], linear["dense.bias"]
    parts = [
        [(c.x, c.y) for c in setup.dealt.clients],
        [(c.test_x, c.test_y) for c in setup.dealt.clients],
    ]
    losses = [
        torch.cat(
            [
                F.cross_entropy(
                    x.flatten(1).double() @ weight.T.double() + bias, y, reduction="none"
                )
                for x, y in p
            ]
        )
        for p in parts
    ]
    member = torch.cat([torch.ones(len(losses[0])), torch.zeros(len(losses[1]))])
    assert found["membership"] == pytest.approx(roc_auc_score(member, -torch.cat(losses)), abs=1e-6)
    below = [float((losses[0] <= x).double().mean()) for x in LOSSES]
    assert found["members"] == pytest.approx(below, abs=2 / len(losses[0]))
    assert found["members"] != found["others"]


def test_cosines_with_both_references_by_hand():
    values = {"method": "sga-ldp", "epsilon_min": 1e7, "epsilon_max": 1.001e7}
    config = tiny(**values)
    config = config.model_copy(
        update={"data": config.data.model_copy(update={"public_examples": 100})}
    )
    trust, view = STUDY.probes["trust"](config), ServerView()
    summary = run(config, probes=[trust, view])
    first, second = (row["figures"] for row in summary.rows)
    wrong = set(config.malicious.who(5, 0))
    assert first["last honest"] == 0  # no reference yet
    one, two = ([s for s in view.received if s.round == n] for n in (1, 2))
    step = two[0].start - one[0].start
    honest = [s.model - s.start for s in two if s.partition not in wrong]
    cosines = [max(0.0, float(F.cosine_similarity(update, step, 0))) for update in honest]
    assert second["last honest"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)
    assert 0.1 < second["public honest"] < 1
    assert first["sigma common"] > 0


def phases(accuracy=0.6, told=0.04, flips=(0.02, 0.1, 0.4)):
    view = {"rates": {"loss": {"0.01": 0.01}, "fedmia": {"0.01": told}}}
    runs = [
        SimpleNamespace(
            summary=SimpleNamespace(
                values={
                    "test_metrics": {"accuracy": accuracy},
                    "concluded": {"membership": {} if k else view},
                    "malicious": {"success": flip},
                }
            )
        )
        for k, flip in enumerate(flips)
    ]
    return {
        name: phase(runs, name).value
        for name in ("accuracy", "told", "nobody", "kept", "worst", "all", "three")
    }


def test_the_phase_diagram_counts_what_holds_at_once():
    found = phases()
    assert found == {
        "accuracy": 0.6,
        "told": 0.04,
        "nobody": 0.02,
        "kept": 0.1,
        "worst": 0.4,
        "all": 1,
        "three": 0,
    }
    assert phases(flips=(0.02, 0.1, 0.12))["three"] == 1
    assert phases(flips=(0.3, 0.1, 0.12))["kept"] == 0.3  # what guesses flips, too
    for worse in ({"accuracy": 0.49}, {"told": 0.06}, {"flips": (0.02, 0.16, 0.4)}):
        assert phases(**worse)["all"] == 0, worse


def test_members_are_told_of_the_first_clients_and_only_where_all_are_honest(monkeypatch):
    monkeypatch.setattr("fedveil_studies.sga_ldp.ATTACKED", 6)
    base = {
        "name": "told",
        "data": {"name": "digits", "clients": 8, "holdout": 0.5},
        "model": {"name": "logistic"},
        "privacy": {"method": "vanilla"},
        "rounds": 2,
        "malicious": {
            "behaviour": "label-flip",
            "source": 1,
            "target": 2,
            "share": 0.25,
            "acting": False,
        },
    }
    asked = []
    monkeypatch.setattr(
        MembershipView,
        "_attacked",
        lambda view, _attack: asked.append({r.partition for r in view._view.received}) or 0.5,
    )
    honest = STUDY.probes["some"](None)
    values = run(parse(base), probes=[honest]).values["concluded"][honest.name]
    assert all(partitions == set(range(6)) for partitions in asked)
    assert {"loss", "fedmia"} <= values["figures"].keys() | values["refused"].keys()
    acting = parse({**base, "malicious": {**base["malicious"], "acting": True}})
    attacked = STUDY.probes["some"](None)
    assert run(acting, probes=[attacked]).values["concluded"][attacked.name] == {}


def test_a_client_with_one_record_keeps_no_other_from_the_attack(monkeypatch):
    few = STUDY.probes["some"](None)
    few._setup, few._globals = SimpleNamespace(poisoning=None), []
    few._clients = [SimpleNamespace(x=torch.zeros(examples)) for examples in (3, 1, 2)]
    few._view = ServerView()
    monkeypatch.setattr(
        ServerView, "__call__", lambda view, seen: view.received.extend(seen.received)
    )
    few(SimpleNamespace(models=[None], received=[SimpleNamespace(partition=p) for p in range(3)]))
    assert [release.partition for release in few._view.received] == [0, 2]


@pytest.mark.data
@pytest.mark.skipif(not SOURCES["bloodmnist"].available, reason="the blood cells are not here")
def test_a_short_run_on_blood_cells(tmp_path):
    config = load("sga-ldp-blood", ["rounds=2", "data.public_examples=200", "local.epochs=1"])
    pixels = config.data.model_copy(
        update={"patches": None}
    )  # patches of 15,000 images take ten seconds
    config = config.model_copy(update={"data": pixels})
    cell = Cell("short", config, (STUDY.probes["watch"](config),))
    outcome = Store(tmp_path).run([cell]).outcomes[cell.key]
    found = outcome.summary.values["malicious"]
    assert (found["number"], found["measured_on"]) == (6, "test half")
    assert found["relabelled"] > 0
    assert outcome.summary.values["test_metrics"]["examples"] == 3_421 - 200
    for measure, argument in (
        ("poisoning", "success"),
        ("poisoning", "recall"),
        ("membership loss", ""),
    ):
        assert 0 <= STUDY.measures[measure]([outcome], argument).value <= 1
    sigma = outcome.summary.noise("sigma", "first")
    assert STUDY.measures["noise"]([outcome], "").value <= sigma * (1 + 1e-9)
    assert math.isfinite(sigma)
    assert STUDY.measures["poisoning"]([outcome], "accuracy").value == pytest.approx(
        STUDY.measures["test"]([outcome], "accuracy").value
    )


def test_stronger_attacks_on_membership_are_figures_of_a_run():
    config = tiny(method="vanilla").model_copy(update={"malicious": None, "rounds": 1})
    probes = [STUDY.probes[name](config) for name in ("server", "shadows")]
    cell = Cell("tiny", config, tuple(probes))
    outcome = Store(None).run([cell]).outcomes[cell.key]
    found = {
        name: STUDY.measures["attack"]([outcome], *name.split()).value
        for name in ("fedmia", "fedmia 0.1", "fedmia 0.001", "lira-offline", "rmia-offline-update")
    }
    told = outcome.summary.values["concluded"]["membership"]
    assert (
        found["fedmia"] == told["figures"]["fedmia"] > 0.55
    )  # the classes of a client's own records
    assert found["fedmia 0.1"] == told["rates"]["fedmia"]["0.1"] > 0.1
    assert math.isnan(found["fedmia 0.001"])  # too few others for ten false ones
    assert 0 < found["lira-offline"] < 1
    assert 0 < found["rmia-offline-update"] < 1
