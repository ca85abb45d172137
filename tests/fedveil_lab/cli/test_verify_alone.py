"""`fedveil verify` where the laboratory stands without the studies."""

from click.testing import CliRunner

from fedveil import registry
from fedveil.cli import app


def absent(monkeypatch):
    """No package brings what plays FedVeil's own methods; all other entry points stay."""
    installed = registry.entry_points
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: () if group == "fedveil.verify" else installed(group),
    )


def test_own_methods_name_the_package_that_brings_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    absent(monkeypatch)
    result = CliRunner().invoke(app, ["verify", "--canaries", "20"])
    assert result.exit_code == 2
    assert "./studies" in result.stderr
    assert not list(tmp_path.iterdir())


def test_other_subjects_need_no_studies(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    absent(monkeypatch)
    steps = "noise_multiplier=3.7307"
    claim = "eps=1 delta=1e-5 zero-out client total central"
    assert CliRunner().invoke(app, ["verify", "--steps", steps, "--claim", claim]).exit_code == 0
