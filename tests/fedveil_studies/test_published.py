"""The study of published tables: what can be proven for the code of others, and that our lines promise no more."""

import csv
import json
import math
import re
from importlib import resources
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedveil import gdp
from fedveil.cli import app as commands
from fedveil.data import load
from fedveil.errors import FieldError
from fedveil_lab.config import load as config_of
from fedveil_lab.grid import Store
from fedveil_lab.runs import run
from fedveil_lab.runs.deal import deal_out
from fedveil_studies.data import heart
from fedveil_studies.data.heart import KEPT, NEEDED, SCALES, load_fed_heart
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.published import nearest_level, study
from fedveil_studies.published.choosing import stepped
from fedveil_studies.published.losing import features
from fedveil_studies.published.theirs import (
    ACCOUNTANTS,
    LINES,
    lines,
    losses,
    of_app,
    of_digits,
    poisson,
    proven,
    uses,
)

RESULTS = Path(__file__).parents[2] / "results" / "published"
ILL = {"cleveland": 139, "hungarian": 98, "switzerland": 45, "va": 101}
PRINTED = {"10": "proven-10", "1": "proven-1", ".1": "proven-01"}


def patients(folder, counts=KEPT, leave_out=()):
    """Write a table of made-up patients; a few more of each hospital lack a value."""
    draw, rows = np.random.default_rng(0), []
    names = [name for name in NEEDED if name not in leave_out]
    for centre, count in counts.items():
        for lacking in (*[False] * count, True, True):
            row = {name: int(draw.integers(0, 2)) for name in NEEDED} | {
                "centre": centre,
                "cp": int(draw.integers(1, 5)),
            }
            rows.append({**row, "age": int(draw.integers(30, 80)), "chol": "" if lacking else 200})
    with (folder / "heart_disease_uci_4_centres.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, "slope"], extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for made-up patients, whose checksum is not asked for."""
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setattr(heart, "require_version", lambda *given: None)
    return tmp_path


def test_hearts_by_hand(folder):
    rows = [row for row in patients(folder) if row["chol"]]
    data = load_fed_heart()
    assert (len(data.x), data.x.shape[1], data.classes) == (740, 13, 2)
    assert dict(zip(data.owners, data.owner.bincount().tolist(), strict=True)) == KEPT
    first, found = rows[0], data.x[0]
    assert found[0] == pytest.approx((first["age"] - SCALES["age"][0]) / SCALES["age"][1])
    assert found[5] == first["sex"]
    assert found[8:11].tolist() == [float(first["cp"] == code) for code in (2, 3, 4)]
    assert data.y.tolist() == [int(row["num"] > 0) for row in rows]
    assert (data.local_columns, load_fed_heart(scale="hospital").local_columns) == (
        (),
        tuple(range(13)),
    )


def test_a_column_that_is_missing_is_refused(folder):
    patients(folder, leave_out=("thalach",))
    with pytest.raises(FieldError, match="thalach"):
        load_fed_heart()


def test_a_record_is_used_once_an_epoch():
    for line in lines():
        batches = -(-int(line["records"]) // int(line["batch"]))
        assert uses(line) * batches >= int(line["updates"]) > (uses(line) - 1) * batches
    assert {line["part"]: uses(line) for line in lines()} == {
        "cleveland": 30,
        "hungarian": 35,
        "va": 69,
        "switzerland": 188,
    }


def test_our_lines_promise_no_more_than_the_least_that_is_proven_for_theirs():
    rows = {
        name: float(row.set["privacy.epsilon"])
        for name, row in study.described.rows.items()
        if name in PRINTED.values()
    }
    for printed, name in PRINTED.items():
        least = min(
            proven(line, of) for line in lines() if line["printed"] == printed for of in ACCOUNTANTS
        )
        assert rows[name] <= least < 1.01 * rows[name]
        assert study.described.rows[name].label.startswith(f"{rows[name]:g}".lstrip("0"))


@pytest.mark.parametrize("printed", ["1"])
def test_no_sampling_would_make_what_is_printed_true(printed):
    [line] = [
        line for line in lines() if (line["printed"], line["part"]) == (printed, "switzerland")
    ]
    assert 2 * float(printed) < poisson(line, "rdp") < 0.6 * proven(line, "rdp")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_opacus_finds_the_noise_that_is_stored(accountant):
    utils = pytest.importorskip("opacus.accountants.utils")
    for line in [line for line in lines() if line["printed"] == "1"][::3]:
        rate = 1 / -(-int(line["records"]) // int(line["batch"]))
        budget = {"target_epsilon": float(line["printed"]), "target_delta": float(line["delta"])}
        noise = utils.get_noise_multiplier(
            **budget, sample_rate=rate, epochs=int(line["planned"]), accountant=accountant
        )
        assert noise == pytest.approx(float(line[f"noise_{accountant}"]), rel=1e-3)


APPS = {line["app"]: line for line in lines("apps.csv")}


@pytest.mark.parametrize("app", APPS)
@pytest.mark.slow
def test_advise_says_what_the_noise_of_an_app_in_the_open_promises(app):
    line = APPS[app]
    options = ["clip", "sigma", "rounds", "delta", "unit"]
    relation = "zero-out"
    if float(line["rate"]) < 1:
        options += ["rate", "steps"]
        relation = "add/remove"
    given = [f"--{name}={line[name]}" for name in options]
    result = CliRunner().invoke(commands, ["advise", f"--relation={relation}", *given])
    said = " ".join(result.output.split())
    promised = rf"eps=(\S+) at delta=1e-05 \({relation}, {line['unit']}, local, total"
    epsilon = float(re.search(promised, said).group(1))
    assert epsilon == pytest.approx(of_app(line), rel=1e-3)


@pytest.mark.parametrize(
    ("app", "known"),
    [
        ("Flower's example fl-dp-sa", 73.63),
        ("FLIP's Flower tutorial", 6.393e8),
        ("RuView conservative", 30.51),
        ("RuView standard", 91.82),
        ("RuView lenient", 284.4),
        ("Flower's example opacus", 0.338),
        ("Flower's example opacus with ten clients", 0.9257),
        ("Flower's example opacus with ten clients for 50 rounds", 3.685),
    ],
)
def test_apps_in_the_open(app, known):
    assert of_app(APPS[app]) == pytest.approx(known, rel=2e-3)


@pytest.mark.parametrize(
    ("accountant", "printed"), [("RDPAccountant", 0.752), ("PRVAccountant", 0.211)]
)
def test_what_opacus_prints_of_one_round_is_not_the_total_of_three(accountant, printed):
    accountants, line = pytest.importorskip("opacus.accountants"), APPS["Flower's example opacus"]
    one = getattr(accountants, accountant)()
    one.history = [(float(line["sigma"]), float(line["rate"]), int(line["steps"]))]
    assert one.get_epsilon(delta=float(line["delta"])) == pytest.approx(printed, abs=1e-3)


@pytest.mark.parametrize(("rounds", "renyi"), [(1, 1.12), (3, 1.32), (50, 4.02)])
def test_renyi_has_more_than_the_exact_curve_for_ten_clients(rounds, renyi):
    accountants = pytest.importorskip("opacus.accountants")
    line = APPS["Flower's example opacus with ten clients"] | {"rounds": str(rounds)}
    found = accountants.RDPAccountant()
    found.history = [(float(line["sigma"]), float(line["rate"]), rounds * int(line["steps"]))]
    assert found.get_epsilon(delta=float(line["delta"])) == pytest.approx(renyi, abs=6e-3)
    assert of_app(line) < renyi


@pytest.mark.parametrize(
    ("line", "uses_of_mu", "poisson_at_most"),
    [
        ("network from pixels", 40 / 1.23**2, 3.0),
        ("linear layer on scattering features", 40 / 3.04**2 + 2 / 64, 3.0),
    ],
)
def test_three_on_mnist_needs_batches_that_were_sampled(line, uses_of_mu, poisson_at_most):
    found = of_digits(**LINES[line])
    mu = uses_of_mu**0.5
    assert found["proven"] == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-3)
    assert found["if Poisson"] < poisson_at_most < 3 * poisson_at_most < found["proven"]


def test_a_step_on_digits_by_hand():
    """One example [3, 4] of class 2 and a zero start: the error is .1 everywhere but -.9, times [3, 4, 1]."""
    x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([2])
    plain = stepped(x, y, 0.0, math.inf, 2.0, 1)
    assert plain[2].tolist() == pytest.approx([5.4, 7.2, 1.8])
    assert plain[0].tolist() == pytest.approx([-0.6, -0.8, -0.2])
    clipped = stepped(x, y, 0.0, 0.5, 1.0, 1)
    assert float(clipped.norm()) == pytest.approx(0.5)
    torch.testing.assert_close(clipped / clipped.norm(), plain / plain.norm())
    twice = stepped(x, y, 0.0, 1e-4, 1.0, 2)  # the second step has .9 of the first one more
    assert float(twice.norm()) == pytest.approx(2.9e-4, rel=1e-3)
    noisy = stepped(torch.zeros(1, 2999), torch.tensor([0]), 0.1, 1.0, 1.0, 1)[:, :2999]
    assert float(noisy.std()) == pytest.approx(0.1, rel=0.03)


def test_features_are_standardised_by_image_and_group_alone():
    maps = torch.rand(3, 81, 7, 7, generator=torch.Generator().manual_seed(0))
    whole = features(maps, 3969, 27)
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(3))
    group = whole.view(3, 27, 147)
    torch.testing.assert_close(group.mean(2), torch.zeros(3, 27), atol=1e-6, rtol=0)
    torch.testing.assert_close(features(maps[:1] * 5, 3969, 27), whole[:1], atol=1e-5, rtol=1e-4)
    assert features(maps, 512, 81).shape == (3, 512)


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository alone")
def test_why_mnist_loses_stands_in_its_files():
    stored = {}
    for file, name in (("losing.csv", "ours"), ("losing-theirs.csv", "theirs")):
        for line in csv.DictReader((RESULTS / file).read_text().splitlines()):
            place = (line["features"], name, line["steps"], line["epsilon"])
            stored[place] = f"{float(line['accuracy']):.3f}".lstrip("0")
    table = (RESULTS / "README.md").read_text().partition("| features | clip and rate")[2]
    shown = [line.split("|")[1:-1] for line in table.split("\n\n")[0].splitlines()[2:]]
    found = {}
    for features_, name, steps, plain, noised in ([c.strip() for c in row] for row in shown):
        count = re.sub(r"\D", "", features_)
        found |= {(count, name, steps, ""): plain, (count, name, steps, "3"): noised}
    assert {place: value for place, value in found.items() if value != "not run"} == stored


def test_what_a_promise_costs_flamby():
    assert losses() == {"heart": [0.012, 0.027, 0.106], "heart-before": [0.012, 0.008, 0.125]}


def test_settings_are_those_of_another_table_of_patients():
    assert nearest_level(dict.fromkeys(("8", "4", "0.5")), 67.7) == "8"
    assert nearest_level(dict.fromkeys(("8", "4", "0.5")), 0.1) == "0.5"
    assert nearest_level(dict.fromkeys(("2", "1", "0.5")), 1.5) == "2"
    columns = (
        resources.files("fedveil_studies.record_level")
        .joinpath("tuned.csv")
        .read_text("utf-8")
        .splitlines()
    )
    known = [row for row in csv.DictReader(columns) if row["scenario"] == "breast"]
    assert {(row["sum"], row["epsilon"]) for row in known} > {
        ("trusted", "8"),
        ("none", "0.5"),
        ("", ""),
    }


@pytest.mark.data
def test_every_line_is_planned_at_its_epsilon_with_borrowed_settings():
    planned = Reproduction(study, Choices(seed=0, seeds=1))
    found = {}
    for measurement in planned.measurements("heart"):
        for cell in measurement.cells:
            config = cell.config
            own = config.privacy.options
            found[own.get("epsilon"), own.get("sum")] = (
                config.rounds,
                own.get("clip"),
                config.local.lr,
            )
    assert found[12.4, "none"] == found[67.7, "none"] == found[10.0, "none"] == (60, 2.0, 0.15)
    assert found[12.4, "secure"] == found[12.4, "trusted"] == (60, 2.0, 0.15)
    assert found[0.93, "none"] == found[1.0, "none"] == (20, 2.0, 0.4)
    assert found[0.1, "none"] == (20, 0.5, 0.6)
    assert found[None, None] == (60, None, 0.5)
    assert len(found) == 1 + 12 + 1


@pytest.mark.data
def test_lines_on_mnist_have_the_published_setting():
    planned = Reproduction(study, Choices(seed=0, seeds=1))
    configs = [c.config for m in planned.measurements("mnist") for c in m.cells]
    private = [config for config in configs if config.privacy.method == "record"]
    assert sorted(config.privacy.options["epsilon"] for config in private) == [3.0, 3.0, 3.0, 10.5]
    for config in private:
        own = config.privacy.options
        assert (own["clip"], config.local.lr, config.aggregator.options["momentum"]) == (
            0.1,
            8,
            0.9,
        )
        assert config.rounds == 40 * (60_000 // 4096)
        assert own["delta"] == 1e-5
        assert own["examples"] * config.data.clients == 60_000


@pytest.mark.data
def test_hospitals_are_measured_on_what_each_of_them_holds_out(tmp_path):
    cell = Reproduction(study, Choices(scale="tiny")).cell("heart", "1", "alone", 0)
    outcome = Store(tmp_path).run([cell]).outcomes[cell.key]
    dealt = deal_out(cell.config.data, cell.config.seed)
    own = {
        client.name: study.measures["hospitals"]([outcome], of=f"{client.name} accuracy").value
        for client in dealt.clients
    }
    assert set(own) == set(KEPT)
    held = {client.name: client.held_out for client in dealt.clients}
    pooled = sum(own[name] * held[name] for name in own) / sum(held.values())
    assert pooled == pytest.approx(outcome.rows[-1]["metrics"]["accuracy"], abs=1e-6)
    assert study.measures["hospitals"]([outcome], of="mean accuracy").value == pytest.approx(
        fmean(own.values())
    )
    assert 0 < study.measures["hospitals"]([outcome], of="va AUC").value < 1
    off = study.measures["hospitals"]([outcome], of="va calibration").value
    square = study.measures["hospitals"]([outcome], of="va Brier").value
    assert off**2 <= square < 1  # by Jensen's inequality


@pytest.mark.data
def test_a_hospitals_own_scaling_is_refused_under_a_promise():
    with pytest.raises(FieldError, match="scale"):
        run(config_of("fed-heart", ["data.scale=hospital", "rounds=1"]))


@pytest.mark.data
def test_the_real_hearts():
    data = load("fed-heart")
    assert dict(zip(data.owners, data.owner.bincount().tolist(), strict=True)) == KEPT
    ill = torch.zeros(4, dtype=torch.int64).index_add(0, data.owner, data.y)
    assert dict(zip(data.owners, ill.tolist(), strict=True)) == ILL


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository alone")
def test_the_page_opens_with_figures_of_its_files():
    def ours(table, row, setting):
        kept = json.loads((RESULTS / f"hospitals/table-{table}.json").read_text())["rows"]
        [value] = [
            r["value"]
            for r in kept
            if (r["row"], r["setting"], r["figure"]) == (row, setting, "accuracy")
        ]
        return value

    def theirs(table, row):
        return next(
            p.value for (t, r, _, _), p in study.published.items() if (t, r) == (table, row)
        )

    at = "12.4 (they print 1)"
    stated = {
        ".796": ours("heart", at, "alone"),
        ".685": theirs("heart", at),
        ".717": ours("own", "none", "vanilla"),
        ".024": ours("heart", "none", "vanilla") - ours("heart", at, "alone"),
        ".027": theirs("heart", "none") - theirs("heart", at),
        ".599": ours("heart", ".1", "alone"),
        ".647": fmean(ill / KEPT[name] for name, ill in ILL.items()),
        ".987": theirs("mnist", "one silo, 10.5 (they print 3)"),
        ".989": ours("mnist", "one silo, 10.5 (they print 3)", "alone"),
        ".976": ours("mnist", "ten silos, 3", "alone"),
    }
    opening = (RESULTS / "README.md").read_text().split("\n\n")[1]
    assert set(re.findall(r"(?<![\w.])\.\d{3}", opening)) == set(stated)
    for figure, value in stated.items():
        assert float(figure) == pytest.approx(value, abs=5.1e-4), figure
    stored = json.loads((RESULTS / "theirs.json").read_text())["lines"]
    found = {
        (line["printed"], line["part"], of): proven(line, of)
        for line in lines()
        for of in ACCOUNTANTS
    }
    apps = {
        one["app"]: one["proven"]
        for one in json.loads((RESULTS / "theirs.json").read_text()).get("apps", ())
    }
    assert not apps or apps == pytest.approx(
        {app: of_app(line) for app, line in APPS.items()}, rel=1e-6
    )
    assert {
        (s["printed"], s["part"], s["accountant"]): s["proven"] for s in stored
    } == pytest.approx(found, rel=1e-6)
