"""Commands of other packages: they join by entry points, and say what to install or what is broken."""

import pytest
import typer
from typer.testing import CliRunner

from fedveil import registry
from fedveil.cli import join_packages


def call(*arguments):
    app = typer.Typer()
    app.command("stay")(lambda: None)
    join_packages(app)
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("arguments", [(), ("--list",), ("metric-privacy", "--table", "5")])
def test_without_the_studies_reproduce_says_what_to_install(arguments, monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    result = call("reproduce", *arguments)
    assert result.exit_code == 2
    assert "fedveil-studies" in result.stderr
    assert "./studies" in call("reproduce", "--help").stdout


def test_with_the_studies_it_is_there():
    result = call("reproduce", "--list")
    assert result.exit_code == 0, result.output
    assert "metric-privacy" in result.stdout


def test_a_broken_command_says_so_when_it_is_called(monkeypatch):
    from importlib.metadata import EntryPoint

    broken = EntryPoint("mine", "nowhere_at_all:command", "fedveil.commands")
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken])
    assert call("stay").exit_code == 0
    result = call("mine", "--option", "value")
    assert result.exit_code == 2
    assert "nowhere_at_all" in result.stderr
