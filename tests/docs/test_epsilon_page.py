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


def rows_below(heading):
    """Rows of the table below a heading, cell by cell."""
    part = re.split(r"\n## ", PAGE.partition(f"## {heading}\n")[2])[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


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


def test_what_catches_what_is_what_the_cases_say():
    rows, known = rows_below("What catches what"), cases("wrong")
    assert len(rows) == len(known) == 13
    for (mistake, scores, steps), case in zip(rows, known.values(), strict=True):
        by = case["by"].split(", ")
        assert (scores == "yes") == ("worst-case world" in by), mistake
        assert [steps] == ([one for one in by if one != "worst-case world"] or [""]), mistake


@pytest.mark.parametrize(("rounds", "said"), [(1, 1.123), (3, 1.316), (50, 4.024)])
def test_the_hub_s_epsilon_follows_from_ten_clients_and_renyi_s_accountant(rounds, said):
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    steps = MechanismSteps.parse(cases("public")["flower_hub_opacus"]["steps"])
    accountant = RdpAccountant()
    event = dp.PoissonSampledDpEvent(steps.rate, dp.GaussianDpEvent(steps.noise_multiplier))
    accountant.compose(event, steps.steps * rounds)
    assert accountant.get_epsilon(1e-5) == pytest.approx(said, abs=1e-3)
    assert f"{said:.2f}" in PAGE


def test_what_is_printed_in_public_is_what_was_composed_and_measured():
    rows, known = rows_below("Epsilons that are printed in public"), cases("public")
    results = ROOT / "results" / "verify" / "public" / "verdicts.csv"
    with results.open(encoding="utf-8") as file:
        measured = {row["mechanism"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(known) == len(measured)
    for (who, printed, proven, bound, _), (name, case) in zip(rows, known.items(), strict=True):
        if case["claim"] is None:
            claim = PrivacyClaim.parse(f"eps=0 delta=1e-5 {case['unit']}")
            assert printed == "nothing", who
        else:
            claim = PrivacyClaim.parse(case["claim"])
            assert float(printed.split(",")[0]) == claim.epsilon, who
        judged = described_alone(who, claim, MechanismSteps.parse(case["steps"]))
        if proven == "nothing":
            assert judged.proven.epsilon is None, who
        else:
            said = float(proven.replace(",", ""))
            assert judged.proven.epsilon == pytest.approx(said, rel=1e-3), who
        assert bool(judged.caught) != (name == "jax_privacy_example"), who
        row = measured[name]
        if bound.startswith("not played"):
            assert row["measured epsilon, at least"] == "-", who
            continue
        figure, value, allowed = re.fullmatch(r"(mu|epsilon) ([\d.]+) \(([\d.]+)\)", bound).groups()
        assert claim.figure == figure, who
        assert float(value) == float(row[f"measured {figure}, at least"]), who
        assert float(allowed) == pytest.approx(claim.most, abs=0.006), who
        assert (float(value) > float(allowed)) == (row["refuted"] == "yes"), who
