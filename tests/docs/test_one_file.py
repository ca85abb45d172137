"""examples/one-file/README.md: the block runs as it stands, and ends where a federation of the same randomness ends."""

import re
from pathlib import Path

import pytest
import torch

import fedveil as fv

PAGE = Path(__file__).resolve().parents[2] / "examples" / "one-file" / "README.md"
CODE = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)


def played(source):
    scope = {}
    exec(compile(CODE.replace("fv.SecureSource()", source), str(PAGE), "exec"), scope)
    return scope


def test_it_is_short_and_learns_under_the_promised_epsilon(capsys):
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 60
    scope = played("fv.SecureSource()")
    assert scope["accuracy"] > 0.6
    assert scope["spent"].epsilon(1e-5) == pytest.approx(8, abs=0.01)
    assert (scope["spent"].unit, scope["spent"].trust) == ("record", "local")
    assert "accuracy" in capsys.readouterr().out


def test_a_federation_ends_in_the_same_model_and_promise():
    one = played("fv.ReproducibleSource(SEED)")
    torch.manual_seed(one["SEED"])
    federation = fv.Federation(
        model=torch.nn.Linear(64, 10),
        clients=one["silos"],
        method=one["method"],
        local=fv.LocalTraining(lr=2.0),
        seed=one["SEED"],
    )
    history = federation.run(one["ROUNDS"])
    torch.testing.assert_close(history.models[0], one["theta"], rtol=1e-5, atol=1e-6)
    assert history.guarantee == one["spent"]
    mine, theirs = (book.entries for book in (one["ledgers"][2], federation.party(2).ledger))
    assert [entry.key for entry in mine] == [entry.key for entry in theirs]
    assert mine[0].digest == theirs[0].digest
