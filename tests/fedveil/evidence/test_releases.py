"""A line a release of a ledger: epsilon, epsilon so far, and what is left of a policy's total."""

import csv
import io
import math

import pytest
from click.testing import CliRunner

import fedveil as fv
from fedveil.accounting import Entry, Policy, digest, total
from fedveil.cli import app
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger
from fedveil.errors import FedVeilError
from fedveil.evidence import release_csv, release_rows, releases
from fedveil.gdp import epsilon_of_mu
from fedveil.methods import Broadcast, PublicFacts, build

RECORD = build("record", examples=10, noise_multiplier=2.0, clip=0.5).client
SGA = build("sga-ldp").client


def spend(side, dimension=3):
    import torch

    facts = PublicFacts(round=1, rounds=3, cohort=3, dimension=dimension)
    return side.quote(Broadcast(models=torch.zeros(1, dimension), public=facts), side.init())


def ledger(*sides):
    made = fv.Ledger("run", "site-1")
    for number, side in enumerate(sides, start=1):
        made.commit(Entry((number, "protect"), 0, digest(()), spend(side), "secure"))
    return made


def policy(**total):
    return Policy(trust=("local",), total=fv.accounting.Limits(**total))


def test_each_line_adds_up_and_says_what_is_left():
    rows = release_rows(ledger(RECORD, RECORD, RECORD), policy(record_mu=1.0), 1e-5)
    for number, row in enumerate(rows, start=1):
        assert row["epsilon"] == pytest.approx(epsilon_of_mu(0.5, 1e-5))
        assert row["epsilon_so_far"] == pytest.approx(epsilon_of_mu(0.5 * math.sqrt(number), 1e-5))
        assert (row["round"], row["unit"], row["cost"]) == (number, "record", "record_mu")
        assert row["spent"] ** 2 + row["left"] ** 2 == pytest.approx(1.0)


SAMPLED = build("record", examples=10, noise_multiplier=2.0, clip=0.5, rate=0.5).client
PERSON = build(
    "record", unit="person", people=10, records_per_person=2, noise_multiplier=3.0, clip=0.5
).client
GROUP = build("group", noise_multiplier=3.0).client


@pytest.mark.parametrize(
    "sides",
    [
        (RECORD, RECORD, PERSON, RECORD),
        (RECORD, SAMPLED, SAMPLED, RECORD, SAMPLED),
        (GROUP, GROUP, GROUP),
        (SGA, SGA),
    ],
    ids=["units", "sampled", "over distance", "without a proof"],
)
def test_equal_costs_count_as_often_as_they_were_paid(sides):
    limits = policy(record_epsilon=50.0, person_mu=3.0, participations=100)
    made = ledger(*sides)
    rows = release_rows(made, limits, 1e-5)
    for number, row in enumerate(rows, start=1):
        spends = [entry.spend for entry in made.entries[:number]]
        try:
            whole = total(spend.guarantee for spend in spends)
            expected = whole.epsilon(1e-5) if whole.proven else ""
        except FedVeilError:
            expected = ""
        assert row["epsilon_so_far"] in (expected, pytest.approx(expected or 0.0, rel=1e-9))
        _, spent, limit = limits.standing(spends)[row["cost"]]
        assert (row["spent"], row["allowed"]) == (pytest.approx(spent, rel=1e-9), limit)


def test_many_releases_are_composed_from_few_costs(monkeypatch):
    lengths = []

    def counted(guarantees):
        parts = list(guarantees)
        lengths.append(len(parts))
        return total(parts)

    monkeypatch.setattr(releases, "total", counted)
    rows = release_rows(ledger(*[RECORD, GROUP] * 30), policy(record_mu=9.0), 1e-5)
    assert len(rows) == 60
    assert max(lengths) == 2


def test_a_heuristic_has_no_epsilon_and_unlike_promises_have_no_total():
    rows = release_rows(ledger(SGA, RECORD), policy(record_mu=1.0), 1e-5)
    assert [row["epsilon"] == "" for row in rows] == [True, False]
    assert [row["epsilon_so_far"] for row in rows] == ["", ""]


def test_without_a_limit_nothing_is_left_or_lacking():
    [row] = release_rows(ledger(RECORD), policy(), 1e-5)
    assert (row["cost"], row["spent"], row["allowed"], row["left"]) == ("", "", "", "")


def test_the_command_writes_a_sites_table(tmp_path):
    begin_ledger(tmp_path / "ledgers", "site-1", by="the tests", head=tmp_path / "heads")
    with LifetimeLedger(tmp_path / "ledgers", "site-1", "job", head=tmp_path / "heads") as lifetime:
        lifetime.store(
            lifetime.ledger.commit(Entry((1, "protect"), 0, digest(()), spend(RECORD), "secure"))
        )
    (tmp_path / "policy.toml").write_text('trust = ["local"]\n[total]\nrecord_mu = 1.0\n')
    command = ["ledger", "show", str(tmp_path / "ledgers" / "site-1.jsonl")]
    command += ["--policy", str(tmp_path / "policy.toml"), "--csv", str(tmp_path / "epsilon.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    [row] = csv.DictReader(io.StringIO((tmp_path / "epsilon.csv").read_text()))
    assert float(row["epsilon_so_far"]) == pytest.approx(epsilon_of_mu(0.5, 1e-5))
    assert float(row["left"]) == pytest.approx(math.sqrt(0.75))


def test_an_empty_ledger_is_a_header_alone():
    assert release_csv(release_rows(ledger(), policy(), 1e-5)).decode().count("\n") == 1
