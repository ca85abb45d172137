"""The page on attacks: its commands are accepted as they stand, and it names everything there is."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedveil.attacks import ATTACKS
from fedveil.attacks.statistics import epsilon_ceiling
from fedveil.cli import app
from fedveil.errors import FedVeilError
from fedveil.experiments.audit_folder import AuditFolder
from fedveil.experiments.audit_plan import NAMES
from fedveil.experiments.replicates_roles import SHADOWS, WORLDS
from fedveil.methods.publishing import MODES

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "attacks.md").read_text()
COMMANDS = [line.split("  #")[0].strip() for line in PAGE.splitlines() if line.startswith("    fedveil ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_accepted(command, tmp_path, monkeypatch):
    """Everything is checked before the folder is made; there this test ends them."""

    def begin(folder):
        raise FedVeilError(f"accepted, and would write to {folder.path}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(AuditFolder, "begin", begin)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.stderr.startswith("fedveil: accepted, and would write to runs/"), (command, result.output)


def test_it_names_every_attack_shadow_world_and_way_of_publishing():
    named = set(re.findall(r"`\"?([a-z-]+)\"?`", PAGE))
    assert set(NAMES) | set(ATTACKS) | set(SHADOWS) | set(WORLDS) | set(MODES) <= named


def test_its_ceilings_are_those_of_the_code():
    for runs, said in ((20, "1.6"), (50, "2.6"), (100, "3.3"), (300, "4.4"), (1000, "5.6")):
        assert f"{epsilon_ceiling(runs):.1f}" == said
        assert said in PAGE
    assert f"of {epsilon_ceiling(30):.2f}" in PAGE


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links
    for link in links:
        assert (Path(__file__).resolve().parent.parent / "docs" / link).exists(), link
