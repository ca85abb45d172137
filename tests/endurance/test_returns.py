"""What comes back over years: a backup, a clock, an old key; closed years; and a second writer where no lock holds."""

import itertools
import os
import shutil
import statistics
from datetime import UTC, datetime, timedelta

import pytest
from acts import Release

from endurance_kit import RUNS, Clock, note
from fedveil.accounting import OPEN, Entry, Filter, Ledger
from fedveil.engines import closing, ledger_head, lifetime
from fedveil.engines.closing import close_ledger, require_closed
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger, ledger_id, read_head
from fedveil.engines.site_keys import bind_key, end_key, make_key
from fedveil.errors import FieldError, LedgerError
from fedveil.files import locked
from test_years import COSTS

pytestmark = pytest.mark.slow
YEARS = 5


def opened(root, run="run", head="head"):
    return LifetimeLedger(root / "ledgers", "ward", run, head=root / head)


def spend_year(root, year, runs):
    """So many runs of one round, each opened anew. Seconds of a processor that each opening took."""
    seconds = []
    for number in range(runs):
        with Clock() as clock:
            book = opened(root, f"year {year}, run {number}").__enter__()
        seconds.append(clock.cpu)
        try:
            for digest in (OPEN, "a"):
                cost = COSTS[number % len(COSTS)]
                book.store(book.ledger.commit(Entry((1, "protect"), 0, digest, cost, "secure", 1)))
        finally:
            book.__exit__(None, None, None)
    return seconds


def spent(root):
    """Releases and mu of all runs, as a new run's filter counts them."""
    budget = Filter(epsilon=100.0, delta=1e-5)
    with opened(root, "counting") as book:
        past = [entry.spend for entry in book.ledger.all_entries]
    assert all(budget.admit_spend(one) for one in past)
    return len(past), budget.spent


def test_years_that_are_closed_one_by_one_with_a_new_key_each(tmp_path):
    runs, openings, archives, keys = RUNS // YEARS, [], [], []
    begin_ledger(tmp_path / "ledgers", "ward", by="the tests", head=tmp_path / "head")
    path = tmp_path / "ledgers" / "ward.jsonl"
    for year in range(YEARS):
        key = tmp_path / f"key-{year}"
        make_key(key)
        bind_key(key, ledger_id(path.parent, "ward"))
        keys.append(key)
        openings += spend_year(tmp_path, year, runs)
        closed = close_ledger(
            path.parent,
            "ward",
            f"year {year}",
            archive=tmp_path / f"{year}",
            head=tmp_path / "head",
        )
        require_closed(path, closed.archive)
        for old in keys:  # none answers from the next year's ledger
            with pytest.raises(FieldError, match="another ledger"):
                bind_key(old, ledger_id(path.parent, "ward"))
        archives.append(closed.archive)
    count, mu = spent(tmp_path)
    squares = [COSTS[number % len(COSTS)].guarantee.mu ** 2 for number in range(runs)]
    assert count == runs * YEARS
    assert mu == pytest.approx((YEARS * sum(squares)) ** 0.5, rel=1e-9)
    for before, after in itertools.pairwise([*archives, path]):
        require_closed(after, before)
    held = path.read_bytes()
    for archive in archives:  # an earlier year, put back
        os.replace(path, tmp_path / "held")
        shutil.copy(archive, path)
        path.chmod(0o600)
        with pytest.raises(LedgerError):
            opened(tmp_path).__enter__()
        path.write_bytes(held)
    for key in keys:
        end_key(key)
    note(
        "returns",
        "years closed one by one",
        runs=count,
        years=YEARS,
        **{
            "opening, median processor seconds": statistics.median(openings),
            "opening, largest processor seconds": max(openings),
        },
    )
    assert statistics.median(openings) < 0.1


def snapshot(root, name):
    for folder in ("ledgers", "head"):
        shutil.copytree(root / folder, root / "backups" / name / folder)


def restore(root, ledger, head, sums):
    """The ledger of one backup, the head and its key of another, the sums of a third."""
    for folder in ("ledgers", "head"):
        shutil.rmtree(root / folder, ignore_errors=True)
    shutil.copytree(root / "backups" / ledger / "ledgers", root / "ledgers")
    shutil.copytree(root / "backups" / head / "head", root / "head")
    (root / "head" / "ward.sums").unlink(missing_ok=True)
    kept = root / "backups" / sums / "head" / "ward.sums"
    if kept.exists():
        shutil.copy(kept, root / "head")


def test_a_backup_that_is_put_back_is_refused_or_forgets_nothing(tmp_path):
    act, counts = Release(), {}
    act.before(tmp_path)
    states = []
    for state in range(5):
        if state == 3:
            close_ledger(
                tmp_path / "ledgers",
                "ward",
                "a year",
                archive=tmp_path / "year",
                head=tmp_path / "head",
            )
        for number in range(150):  # enough for sums
            act.release(tmp_path, 1, f"state {state}, run {number}")
        snapshot(tmp_path, str(state))
        counts[str(state)] = spent(tmp_path)
        states.append(str(state))
    assert (tmp_path / "head" / "ward.sums").exists()
    refused = 0
    for ledger, head, sums in itertools.product(states, repeat=3):
        restore(tmp_path, ledger, head, sums)
        if ledger != head:
            with pytest.raises(LedgerError):
                opened(tmp_path).__enter__()
            refused += 1
            continue
        assert spent(tmp_path) == counts[ledger]  # both places put back together: as it was then
        act.release(tmp_path, 1, "afterwards")
        assert spent(tmp_path)[0] == counts[ledger][0] + 1
    # two places put back, and then other releases: sums of the branch that was lost are not believed
    for older, newer in itertools.combinations(states, 2):
        restore(tmp_path, older, older, older)
        for number in range(10):
            act.release(tmp_path, 1, f"another branch, run {number}")
        kept = tmp_path / "backups" / newer / "head" / "ward.sums"
        shutil.copy(kept, tmp_path / "head")
        assert spent(tmp_path)[0] == counts[older][0] + 10
    note("returns", "backups put back", played=len(states) ** 3 + 10, refused=refused)


class Backwards(datetime):
    """A clock that goes back by a day at every look."""

    looks = itertools.count()

    @classmethod
    def now(cls, zone=None):
        return datetime(2026, 1, 1, tzinfo=UTC) - timedelta(days=next(cls.looks))


def test_a_clock_that_goes_backwards_changes_nothing_that_is_counted(tmp_path, monkeypatch):
    for module in (lifetime, closing, ledger_head):
        monkeypatch.setattr(module, "datetime", Backwards)
    act = Release()
    act.before(tmp_path)
    for year in range(3):
        for number in range(5):
            act.release(tmp_path, 1, f"year {year}, run {number}")
        closed = close_ledger(
            tmp_path / "ledgers",
            "ward",
            "a year",
            archive=tmp_path / f"{year}",
            head=tmp_path / "head",
        )
        require_closed(closed.ledger, closed.archive)
    assert next(Backwards.looks) >= 5
    assert spent(tmp_path)[0] == act.lines + 15


@pytest.fixture
def no_locks(monkeypatch):
    """A file system that takes locks and keeps none."""
    monkeypatch.setattr(locked, "lock", lambda handle: None)
    monkeypatch.setattr(locked, "_unlock", lambda handle: None)


def entry(round_, digest):
    return Entry((round_, "protect"), 0, digest, COSTS[0], "secure", 5)


def test_a_second_writer_is_refused_where_no_lock_holds(tmp_path, no_locks):
    begin_ledger(tmp_path / "ledgers", "ward", by="the tests", head=tmp_path / "head")
    path = tmp_path / "ledgers" / "ward.jsonl"
    for first_lines, second_lines in itertools.product((1, 2, 3), (0, 1)):
        with opened(tmp_path, f"{first_lines}-{second_lines}") as first:
            second = opened(tmp_path, f"other {first_lines}-{second_lines}")
            second.__enter__()
            for number in range(first_lines):
                first.store(
                    first.ledger.commit(entry(number // 2 + 1, "a" if number % 2 else OPEN))
                )
            for digest in (OPEN, "b")[second_lines:]:
                with pytest.raises(LedgerError, match="lock"):
                    second.store(second.ledger.commit(entry(1, digest)))
            first.store(first.ledger.commit(entry(7, OPEN)))
        before = read_head(path, tmp_path / "head")
        assert before.count == len(path.read_text().splitlines()) - 1
    with opened(tmp_path, "later") as later:
        assert isinstance(later.ledger, Ledger)


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    act = Release()
    act.before(tmp_path)

    def refusing(handle):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locked, "lock", refusing)
    with pytest.raises(LedgerError, match="No locks available"):
        opened(tmp_path).__enter__()
