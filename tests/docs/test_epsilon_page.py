"""The page on anybody's epsilon: its example runs as printed, its tables are those of the examples' files."""

import csv
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.verify import MechanismSteps, PrivacyClaim
from fedveil_lab.verify.judged import described_alone

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "is-this-epsilon-true.md").read_text(encoding="utf-8")


def cases(name):
    """The cases of one of the examples' files."""
    spec = importlib.util.spec_from_file_location(
        f"page_{name}", ROOT / "examples" / "verify" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


def measured_in(table):
    """The rows of a table of verdicts, by mechanism."""
    with (ROOT / "results" / "verify" / table).open(encoding="utf-8") as file:
        return {row["mechanism"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_a_stranger_s_mechanism_is_refuted_and_the_mended_one_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, worlds = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [command] = re.findall(r"^    fedveil (verify my\.py:.*)$", PAGE, re.MULTILINE)
    for text, caught in ((code, 1), (code.replace("3.7307 / len(data_sets)", "3.7307"), 0)):
        Path("my.py").write_text(text)
        result = CliRunner().invoke(app, [*shlex.split(command), "--runs", "1500"])
        assert result.exit_code == caught, result.output
        assert ("REFUTED by worst-case world" in result.output) == bool(caught)
    Path("my.py").write_text(f"{code}\n\n{worlds}")
    result = CliRunner().invoke(app, [*shlex.split(command), "--runs", "300"])
    assert "looked again at my labels" in result.output


def test_what_catches_a_planted_mistake_is_what_its_case_says():
    known, rows = cases("wrong"), measured_in("verdicts.csv")
    caught = {name for name, row in rows.items() if name in known and row["refuted"] == "yes"}
    assert len(known) == 13
    for name, case in known.items():
        assert set(rows[name]["caught by"].split(", ")) == set(case["by"].split(", ")), name
        assert (name in caught) == ("worst-case world" in case["by"]), name
    assert set(known) - caught == {"shuffled_lots"}  # twelve of thirteen, as the page has it
    assert "twelve of thirteen" in PAGE


@pytest.mark.parametrize(("rounds", "said"), [(1, 1.123), (3, 1.316), (50, 4.024)])
def test_the_hub_s_epsilon_follows_from_ten_clients_and_renyi_s_accountant(rounds, said):
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    steps = MechanismSteps.parse(cases("public")["flower_hub_opacus"]["steps"])
    accountant = RdpAccountant()
    event = dp.PoissonSampledDpEvent(steps.rate, dp.GaussianDpEvent(steps.noise_multiplier))
    accountant.compose(event, steps.steps * rounds)
    assert accountant.get_epsilon(1e-5) == pytest.approx(said, abs=1e-3)
    assert f"{said:.2f}" in (ROOT / "results" / "published" / "README.md").read_text(
        encoding="utf-8"
    )


def test_what_is_printed_in_public_is_what_was_composed_and_measured():
    known, rows = cases("public"), measured_in("public/verdicts.csv")
    assert list(rows) == list(known)
    for who, case in known.items():
        row = rows[who]
        claim = PrivacyClaim.parse(case["claim"] or f"eps=0 delta=1e-5 {case['unit']}")
        judged = described_alone(who, claim, MechanismSteps.parse(case["steps"]))
        if row["proven epsilon"] == "nothing":
            assert judged.proven.epsilon is None, who
        else:
            said = float(row["proven epsilon"])
            assert judged.proven.epsilon == pytest.approx(said, rel=1e-3), who
        assert bool(judged.caught) != (who == "jax_privacy_example"), who
        bound = row[f"measured {claim.figure}, at least"]
        if bound != "-":
            assert (float(bound) > claim.most) == (row["refuted"] == "yes"), who
    assert sum(row["refuted"] == "yes" for row in rows.values()) == 6
    assert float(rows["flower_opacus"]["proven epsilon"]) == pytest.approx(0.338, abs=5e-4)
