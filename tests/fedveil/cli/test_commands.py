"""Commands of other packages: they join by entry points, and say what to install or what is broken."""

from importlib.metadata import EntryPoint

import click
import pytest
import typer
from click.testing import CliRunner

from fedveil import registry
from fedveil.cli import command_line


def call(*arguments, own=None):
    return CliRunner().invoke(
        command_line(own or {"stay": click.Command("stay", callback=lambda: None)}), arguments
    )


@pytest.mark.parametrize(
    ("command", "package"),
    [("reproduce", "studies"), ("run", "lab"), ("audit", "lab"), ("data", "lab")],
)
@pytest.mark.parametrize("arguments", [(), ("--list",), ("metric-privacy", "--table", "5")])
def test_without_its_package_a_command_says_what_to_install(
    command, package, arguments, monkeypatch
):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    result = call(command, *arguments)
    assert result.exit_code == 2
    assert f"fedveil-{package}" in result.stderr
    assert f"./{package}" in call(command, "--help").stdout
    assert call("stay").exit_code == 0


@pytest.mark.parametrize("command", ["plan", "advise"])
def test_without_the_laboratory_a_configuration_is_refused_and_numbers_are_not(
    command, monkeypatch
):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    numbers = {
        "plan": ["--epsilon", "8", "--delta", "1e-5", "--rounds", "2"],
        "advise": ["--clip", "1", "--sigma", "2.4", "--rounds", "20", "--epsilon", "10"],
    }
    app = command_line()
    refused = CliRunner().invoke(app, [command, "digits-record"])
    assert refused.exit_code == 2
    assert "fedveil-lab" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert CliRunner().invoke(app, [command, *numbers[command]]).exit_code == 0


def test_with_the_studies_it_is_there():
    result = call("reproduce", "--list")
    assert result.exit_code == 0, result.output
    assert "metric-privacy" in result.stdout


def bring(monkeypatch, **values):
    """Entry points of a package of somebody's."""
    entries = [EntryPoint(name, value, "fedveil.commands") for name, value in values.items()]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: entries if group == "fedveil.commands" else ()
    )


def of_typer(number: int = typer.Option(3, help="How many.")):
    """A function for Typer."""
    typer.echo(f"{number} of Typer's")


@click.command()
def of_click():
    """Click's own."""
    click.echo("of Click")


def test_functions_for_typer_and_commands_of_click_join(monkeypatch):
    bring(monkeypatch, one=f"{__name__}:of_typer", two=f"{__name__}:of_click")
    assert call("one", "--number", "5").stdout == "5 of Typer's\n"
    assert call("two").stdout == "of Click\n"
    said = call("--help").stdout
    assert "A function for Typer." in said
    assert "Click's own." in said


def test_a_package_takes_no_command_of_the_library(monkeypatch):
    bring(monkeypatch, stay=f"{__name__}:of_click")
    assert call("stay").stdout == ""


def test_a_broken_command_says_so_when_it_is_called(monkeypatch):
    bring(monkeypatch, mine="nowhere_at_all:command")
    assert call("stay").exit_code == 0
    result = call("mine", "--option", "value")
    assert result.exit_code == 2
    assert "nowhere_at_all" in result.stderr
