"""Thousands of runs on one lifetime ledger: it opens at once, `ledger show` checks every line, and a year is closed."""

import statistics
import time

import pytest
from click.testing import CliRunner

from endurance_kit import RUNS, Clock, note
from fedveil.accounting import OPEN, Entry, Filter, Guarantee, Limits, Policy, Spend
from fedveil.accounting.bounds import GDP
from fedveil.cli import app
from fedveil.engines.closing import close_ledger, require_closed
from fedveil.engines.lifetime import (
    LifetimeLedger,
    begin_ledger,
    make_head,
    read_head,
    read_ledger,
)

pytestmark = pytest.mark.slow
LAST = 100  # runs that are opened and written one by one; the lines of those before are written at once
OPENING = 0.1  # seconds of a processor


def spend(mu):
    record = {"unit": "record", "relation": "replace-one", "trust": "local", "scope": "round"}
    promise = Guarantee(**record, bound=GDP(mu), public_size=True)
    return Spend(guarantee=promise, mechanism="gaussian", scale=(1.0,), sensitivity=1.0)


COSTS = [spend(0.001 * (1 + number % 7)) for number in range(7)]


def entries(number, rounds):
    """An intent and a release a round, as a node commits them."""
    for round_ in range(1, rounds + 1):
        for digest in (OPEN, f"{number:064d}"):
            yield Entry((round_, "protect"), 0, digest, COSTS[number % 7], "secure", rounds)


def many(root, rounds):
    """A ledger of all runs but the last, with its head."""
    path = begin_ledger(root / "ledgers", "ward", by="the tests", head=root / "head")
    ledger, _, _ = read_ledger(path)
    with path.open("a") as file:
        for number in range(RUNS - LAST):
            ledger.run = f"run-{number}"
            ledger.earlier, ledger.entries = ledger.entries, []
            file.writelines(f"{ledger.commit(one)}\n" for one in entries(number, rounds))
    for name in ("ward.head", "ward.key"):
        (root / "head" / name).unlink()
    make_head(root / "ledgers", "ward", "the tests", head=root / "head")
    return path


@pytest.mark.parametrize("rounds", [1, 10])
def test_years(rounds, tmp_path):
    path, head = many(tmp_path, rounds), tmp_path / "head"

    def opened(run):
        return LifetimeLedger(path.parent, "ward", run, head=head)

    with Clock() as first, opened("the first") as mine:
        assert len(mine.ledger.all_entries) == (RUNS - LAST) * rounds
    openings, walls, admissions = [], [], []
    policy = Policy(trust=("local",), total=Limits(record_mu=1e3))
    for number in range(RUNS - LAST, RUNS):
        with Clock() as clock:
            book = opened(f"run-{number}").__enter__()
        openings.append(clock.cpu)
        walls.append(clock.wall)
        try:
            begun = time.process_time()
            past = [one.spend for one in book.ledger.all_entries]
            assert policy.refusal("record", "local", True, COSTS[number % 7], past) is None
            admissions.append(time.process_time() - begun)
            for one in entries(number, rounds):
                book.store(book.ledger.commit(one))
        finally:
            book.__exit__(None, None, None)
    with Clock() as shown:
        done = CliRunner().invoke(app, ["-q", "ledger", "show", str(path), "--head", str(head)])
    assert done.exit_code == 0, done.output
    assert read_head(path, head).count == RUNS * rounds * 2
    with opened("last") as mine:
        past = [one.spend for one in mine.ledger.all_entries]
    exact = sum(COSTS[number % 7].guarantee.mu ** 2 for number in range(RUNS)) * rounds
    budget = Filter(epsilon=10.0, delta=1e-5)
    assert all(budget.admit_spend(one) for one in past)
    assert len(past) == RUNS * rounds
    assert budget.spent == pytest.approx(exact**0.5, rel=1e-9)
    with Clock() as closing:
        closed = close_ledger(path.parent, "ward", "a year", archive=tmp_path / "year", head=head)
    require_closed(path, closed.archive)
    with Clock() as after, opened("next year") as mine:
        again = Filter(epsilon=10.0, delta=1e-5)
        assert all(again.admit_spend(one.spend) for one in mine.ledger.all_entries)
    assert again.spent == pytest.approx(budget.spent, rel=1e-12)
    note(
        "years",
        f"{rounds} rounds a run",
        runs=RUNS,
        lines=RUNS * rounds * 2,
        bytes=closed.archive.stat().st_size,
        **{
            "opening, median processor seconds": statistics.median(openings),
            "opening, largest processor seconds": max(openings),
            "opening, median seconds": statistics.median(walls),
            "policy, median processor seconds": statistics.median(admissions),
            "first opening, processor seconds": first.cpu,
            "ledger show, processor seconds": shown.cpu,
            "closing, processor seconds": closing.cpu,
            "opening after closing, processor seconds": after.cpu,
        },
    )
    assert statistics.median(openings) < OPENING
