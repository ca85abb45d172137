"""The page on attacks: its commands are accepted as they stand, and it names everything there is."""

import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FedVeilError
from fedveil.gdp import epsilon_of_mu, rounded_up
from fedveil.methods import Publishing
from fedveil.methods.publishing import Mode
from fedveil_lab.attacks import ATTACKS
from fedveil_lab.attacks.bounds import epsilon_ceiling
from fedveil_lab.config.variants import EQUAL_SIGMA
from fedveil_lab.games.roles import SHADOWS, WORLDS
from fedveil_lab.grid import Store
from fedveil_lab.report.audit_tables import fewest_runs
from fedveil_studies.metric_privacy.game import PrintedGame
from fedveil_studies.metric_privacy.printed import NOT_INDEPENDENT

RESULTS = Path(__file__).resolve().parents[2] / "results" / "metric-privacy"
INFERENCE = RESULTS / "client-inference"
DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST = (DOCS / "attacks.md").read_text()
MORE = ("attack-adversaries", "attack-records", "inversion", "malicious")
PAGE = "\n".join([FIRST, *((DOCS / f"{name}.md").read_text() for name in MORE)])
COMMANDS = [
    line.split("  #")[0].strip() for line in PAGE.splitlines() if line.startswith("    fedveil ")
]


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_its_python_runs(block):
    exec(block, {})


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_its_commands_are_accepted(command, tmp_path, monkeypatch):
    """Everything is checked before the folder is made; there this test ends them."""

    def alone(store, kind):
        raise FedVeilError(f"accepted, and would write to {store.folder}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "opened", alone)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.stderr.startswith("fedveil: accepted, and would write to runs/"), (
        command,
        result.output,
    )


def test_it_begins_with_what_to_run_and_ends_with_what_was_measured():
    titles = re.findall(r"^## (.+)$", FIRST, re.MULTILINE)
    assert titles[0] == "What to run first"
    assert titles[-1] == "What was measured"


def test_it_names_every_attack_shadow_world_and_way_of_publishing():
    named = set(re.findall(r"`(?:--attack )?\"?([a-z-]+)\"?`", PAGE))
    assert (
        set(PrintedGame.known) | set(ATTACKS) | set(SHADOWS) | set(WORLDS) | set(get_args(Mode))
        <= named
    )


def test_its_ceilings_are_those_of_the_code():
    for runs, said in ((100, "3.3"), (1000, "5.6")):
        assert f"{epsilon_ceiling(runs):.1f}" == said
        assert said in PAGE
    assert f"of {epsilon_ceiling(30):.2f}" in PAGE


def test_the_numbers_of_runs_and_the_costs_of_metrics_are_those_of_the_code():
    least, two = (fewest_runs(epsilon, 1e-5) for epsilon in (0, 2))
    assert f"With {least - 1} or fewer" in PAGE
    said = f"{least} can prove an epsilon above 0, {two} (the default) one of 2"
    assert said in " ".join(PAGE.split())
    for squares, epsilon in (
        (20, "28.38"),
        (80, "77.34"),
        (100, "91.82"),
    ):  # 20 rounds of mu 1, 2, and both
        assert rounded_up(epsilon_of_mu(squares**0.5, 1e-5)) == epsilon
        assert epsilon in PAGE
    assert f"With z = {Publishing().noise_multiplier:g}" in PAGE  # the default


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links
    for link in links:
        assert (Path(__file__).resolve().parents[2] / "docs" / link).exists(), link


@pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ are part of the repository, not of the package"
)
def test_what_is_compared_at_equal_sigma_has_equal_sigma():
    found = [
        json.loads((RESULTS / f"audit-{name}.json").read_text()) for name in ("digits", "images")
    ]
    found += [
        json.loads((INFERENCE / name / "audit.json").read_text())
        for name in ("compare-z-05", "compare-z-2")
    ]
    for audited in found:
        sigmas = {about["method"]: about["sigma"] for about in audited["settings"].values()}
        equal = next(
            about["sigma"] for s, about in audited["settings"].items() if s.startswith(EQUAL_SIGMA)
        )
        assert equal == pytest.approx(sigmas["metric"], rel=0.01)


@pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ are part of the repository, not of the package"
)
def test_the_page_on_client_inference_has_the_audits_figures():
    page = (INFERENCE / "README.md").read_text()
    audits = {
        path.parent.name: json.loads(path.read_text()) for path in INFERENCE.glob("*/audit.json")
    }
    printed = {
        f"{r['auc']['point']:.3f} ({r['auc']['low']:.2f}-{r['auc']['high']:.2f})".removeprefix("0")
        for found in audits.values()
        for r in found["results"]
    }
    cells = re.findall(r"\| ([.1]\S+ \(\S+\)) (?=\|)", page)
    assert len(cells) > 90
    assert set(cells) <= printed
    placebo = [
        r["auc"]
        for name in ("world-itself", "world-itself-seed-1")
        for r in audits[name]["results"]
    ]
    missed = sum(not auc["low"] <= 0.5 <= auc["high"] for auc in placebo)
    assert f"{missed} of {len(placebo)} intervals exclude .5" in page
    pairs = [
        json.loads(path.read_text())["paper"]["multi_round"]
        for path in INFERENCE.glob("pairs/*.json")
    ]
    excluded = [[not r["auc"]["low"] <= 0.5 <= r["auc"]["high"] for r in pair] for pair in pairs]
    without, under = (sum(column) for column in zip(*excluded, strict=True))
    assert f"excludes .5 in {under} pairs under global DP and in {without} without noise" in page
    assert (
        f"{without} (without noise) and {under} (under global DP) of {len(pairs)} pairs"
        in NOT_INDEPENDENT
    )
