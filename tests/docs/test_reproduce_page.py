"""The page on reproduction: its commands do what it says as far as that takes no training, and it names everything."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.config import load
from fedveil_lab.config.variants import variants_of
from fedveil_lab.games.participation import check_audit
from fedveil_studies.frame import Choices, Reproduction, find
from fedveil_studies.metric_privacy.measures import noise_factor

PAGE = (Path(__file__).resolve().parents[2] / "studies" / "reproduce.md").read_text()
COMMANDS = [
    line.split("  #")[0].strip() for line in PAGE.splitlines() if re.match(r" {4,6}fedveil ", line)
]
REPRODUCE = [command for command in COMMANDS if command.startswith("fedveil reproduce")]
OTHERS = [command for command in COMMANDS if command not in REPRODUCE]


@pytest.mark.few(2)
@pytest.mark.parametrize("command", REPRODUCE)
def test_the_reproductions_are_planned(command, tmp_path):
    dry = [] if "--list" in command else ["--dry-run"]
    result = CliRunner().invoke(
        app, [*shlex.split(command)[1:], *dry, "--out", str(tmp_path / "none")]
    )
    assert result.exit_code == 0, result.output
    assert "--list" in command or " 0 finished" in result.output
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", OTHERS)
def test_the_other_commands_parse_and_their_configurations_load(command):
    name, where, *options = shlex.split(command)[1:]
    assert name in ("audit", "compare")
    known = (
        CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    )
    assert all(option in known for option in options if option.startswith("--"))
    config = load(where, [value for flag, value in pairwise(options) if flag == "--set"])
    assert len(variants_of(config)) > 2
    if "--audit" in options:
        check_audit(config, int(options[options.index("--audit") + 1]))


def test_there_are_commands():
    assert len(REPRODUCE) > 5
    assert len(OTHERS) > 2


def test_the_page_names_every_table_figure_and_reading():
    told = find("metric-privacy").described
    named = set(re.findall(r"`([a-z-]+)`", PAGE)) | set(re.findall(r"\b[A-E]?\d{1,2}\b", PAGE))
    named |= {f"{name}-non-iid" for name in named}  # "(each also `-non-iid`)"
    assert {*told.tables, *told.figures} <= named
    assert set(told.readings) <= named


def test_the_figures_of_the_small_scale_are_its_own():
    study = find("metric-privacy")
    small = study.described.scales["small"]
    assert f"{small.facts['parameters']:,.0f} parameters" in PAGE
    assert f"by {noise_factor(small):.2f}" in PAGE.replace("\n", " ")
    assert f"gets {small.present['pretraining.epochs']}" in PAGE
    assert f"{small.set['data.resolution']}x{small.set['data.resolution']} pixels" in PAGE
    [first, *_] = Reproduction(study, Choices(scale="paper")).measurements("5")
    config = first.cells[0].config
    trained = sum(map(sum, config.data.counts)) * 0.8 * config.local.epochs * config.rounds
    assert f"trains {trained:,.0f} images" in PAGE
