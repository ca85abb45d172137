"""`fedveil verify`: the game on every method's path as a command."""

import json

from typer.testing import CliRunner

from fedveil.cli import app
from fedveil.games import guarantees
from fedveil.games.guarantees import cases, game, noise, played


def test_every_claim_is_played_and_a_beaten_one_ends_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(guarantees, "DIMENSIONS", (1,))
    monkeypatch.setattr(game, "DIMENSIONS", (1,))
    monkeypatch.setattr(played, "PARTIES", 4)
    result = CliRunner().invoke(app, ["verify", "--runs", "60", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "game.json").read_text())
    assert [row["method"] for row in record["rows"]] == [case.name for case in cases(1)]
    assert {row["held"] for row in record["rows"]} == {True, None}
    assert record["provenance"]["command"].startswith("fedveil verify") or record["provenance"]["commit"]
    told = json.loads((tmp_path / "noise.json").read_text())["rows"]
    assert [row["method"] for row in told] == [one.name for one in noise.methods(1)]
    assert all(row["as_declared"] for row in told)
    monkeypatch.setattr(game, "held", lambda case, result: False)
    beaten = CliRunner().invoke(app, ["verify", "--runs", "8", "--out", str(tmp_path)])
    assert beaten.exit_code == 1
    assert "claims are beaten" in beaten.stderr
