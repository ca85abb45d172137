"""The head of a lifetime ledger: what was put back, edited or copied is refused, and no crash is taken for that."""

import io
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from dataclasses import replace

import pytest

from fedveil.accounting import OPEN, Entry, Guarantee, Ledger, Limits, Policy, Spend
from fedveil.accounting.bounds import GDP
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger, make_head, read_head, read_ledger
from fedveil.errors import FieldError, LedgerError

MU = Guarantee(unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(0.1))
SPEND = Spend(guarantee=MU, mechanism="gaussian")


def entry(round_, digest="a", attempt=0):
    return Entry((round_, "protect"), attempt, digest, SPEND, "secure", 5)


class Books:
    """A ledger and its second place."""

    def __init__(self, root):
        self.folder, self.head = root / "ledgers", root / "head"
        self.path = begin_ledger(self.folder, "ward", by="the tests", head=self.head)
        self.second = [self.head / "ward.head", self.head / "ward.key"]

    def open(self, run="run"):
        return LifetimeLedger(self.folder, "ward", run, head=self.head)

    def release(self, *rounds, run="run"):
        """An intent and a release a round, as a node commits them."""
        with self.open(run) as mine:
            for number in rounds:
                for digest in (OPEN, "a"):
                    mine.store(mine.ledger.commit(entry(number, digest)))

    def spent(self):
        with self.open("another") as mine:
            return len(mine.ledger.all_entries)


@pytest.fixture
def books(tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.files.locked.PATIENCE", 0.2)
    return Books(tmp_path)


def refused(books):
    with pytest.raises(LedgerError), books.open():
        pass
    return True


def test_a_ledger_that_is_put_back_is_refused(books):
    # a policy of mu 1 allowed 13 releases, and 3 more after an older file was restored
    policy, made = Policy(total=Limits(mu=1.0)), 0
    spend = Spend(guarantee=replace(MU, bound=GDP(0.277)), mechanism="gaussian")

    def next_run(run):
        with books.open(run) as mine:
            past = [e.spend for e in mine.ledger.all_entries]
            if policy.refusal("m", "local", True, spend, past) is not None:
                return 0
            mine.store(mine.ledger.commit(Entry((1, "protect"), 0, OPEN, spend, "secure", 1)))
            mine.store(mine.ledger.commit(Entry((1, "protect"), 0, "a", spend, "secure", 1)))
            return 1

    for run in range(20):
        if run == 10:
            older = books.path.read_bytes()
        made += next_run(str(run))
    assert made == 13
    last = books.path.read_bytes()
    books.path.write_bytes(older)
    for run in range(20, 25):
        with pytest.raises(LedgerError, match="put back"):
            next_run(str(run))
    books.path.write_bytes(last)
    assert next_run("30") == 0


def test_every_shorter_ledger_is_refused(books):
    books.release(1, 2, 3)
    whole = books.path.read_bytes().splitlines(keepends=True)
    for kept in range(len(whole)):
        books.path.write_bytes(b"".join(whole[:kept]))
        assert refused(books)
        books.path.write_bytes(b"".join(whole[:kept]) + whole[kept][:9])  # as a crash leaves it
        assert refused(books)
    books.path.write_bytes(b"".join(whole))
    assert books.spent() == 3


def test_an_older_head_is_refused_where_a_release_has_left_since(books):
    books.release(1)
    for extra in ([2], [3, 4]):
        before = [path.read_bytes() for path in books.second]
        books.release(*extra)
        after = [path.read_bytes() for path in books.second]
        for path, content in zip(books.second, before, strict=True):
            path.write_bytes(content)
        assert refused(books)
        for path, content in zip(books.second, after, strict=True):
            path.write_bytes(content)
        assert books.spent() == 1 + extra[-1] - 1


def test_both_places_put_back_together_are_not_detected(books):
    # what the page says; a machine's snapshot does it
    books.release(1)
    before = {path: path.read_bytes() for path in (books.path, *books.second)}
    books.release(2)
    for path, content in before.items():
        path.write_bytes(content)
    assert books.spent() == 1


def seen(books):
    """The ledger as its own run sees it."""
    ledger, lines, _ = read_ledger(books.path)
    return Ledger.parse("run", "ward", lines, ledger.head)


def forged(books, *entries):
    """The ledger with lines that somebody without the key has added."""
    ledger = seen(books)
    with books.path.open("ab") as file:
        file.writelines(ledger.commit(one).encode() + b"\n" for one in entries)


def test_without_the_key_nothing_can_be_taken_off(books):
    books.release(1)
    forged(books, entry(2, OPEN), entry(3, OPEN))
    assert books.spent() == 3  # as a crash leaves it: they only add
    ledger = seen(books)
    with pytest.raises(LedgerError):  # nor is an intent replaced by a cheaper one
        ledger.commit(entry(2, OPEN))
    forged(books, entry(2, "b"))  # one that is closed costs what its release did
    assert refused(books)


def test_a_whole_ledger_of_ones_own_is_refused(books, tmp_path):
    books.release(1, 2)
    first = books.path.read_bytes().splitlines(keepends=True)[0]
    for begun in (first, first.replace(b"the tests", b"somebody")):
        books.path.write_bytes(begun)
        assert refused(books)
    other = Books(tmp_path / "other")
    other.release(1, 2)
    shutil.copy(other.path, books.path)
    assert refused(books)
    for name in ("ward.head", "ward.key"):
        shutil.copy(other.head / name, books.head / name)
    assert books.spent() == 2  # who can write both places can forge


def test_a_head_that_is_missing_edited_or_foreign_is_refused(books, tmp_path):
    books.release(1)
    file, key = books.second
    for path in books.second:
        content = path.read_bytes()
        for damage in (None, b"", content[:-9], b"[" * 9999, b"{}", b"7"):
            path.unlink() if damage is None else path.write_bytes(damage)
            assert refused(books)
        path.write_bytes(content)
        path.chmod(0o600)
    values = json.loads(file.read_bytes())
    for name, value in (
        ("count", 1),
        ("count", True),
        ("checksum", "0" * 64),
        ("ledger", "0" * 64),
        ("announced", "x"),
    ):
        file.write_text(json.dumps({**values, name: value}))
        assert refused(books)
    file.write_text(json.dumps(values))
    assert books.spent() == 1
    if os.name == "posix":
        assert [path.stat().st_mode & 0o777 for path in (file, key, books.head)] == [
            0o600,
            0o600,
            0o700,
        ]
        key.chmod(0o640)
        assert refused(books)


def test_of_a_missing_key_the_file_is_named_and_a_new_second_place_can_be_made(books, tmp_path):
    books.release(1)
    key = books.second[1]
    key.unlink()
    for use in (books.open().__enter__, lambda: read_head(books.path, books.head)):
        with pytest.raises(LedgerError) as refused:
            use()
        assert str(key) in str(refused.value)
        assert "locked" not in str(refused.value)
    assert make_head(books.folder, "ward", "Dr. Roe: lost", head=tmp_path / "new").count == 2


def test_a_second_place_is_named_and_is_another(books, tmp_path):
    for head in (None, books.folder, tmp_path / "ledgers" / "." / ""):
        with pytest.raises(FieldError, match="head"):
            LifetimeLedger(books.folder, "ward", "run", head=head)
        with pytest.raises(FieldError, match="head"):
            begin_ledger(books.folder, "new", by="me", head=head)
    with pytest.raises(
        FieldError, match="what was spent stays spent"
    ):  # a ledger elsewhere, under the same head
        begin_ledger(tmp_path / "elsewhere", "ward", by="me", head=books.head)
    assert not (tmp_path / "elsewhere" / "ward.jsonl").exists()


def test_an_older_ledger_gets_a_head_by_an_act(books, tmp_path):
    books.release(1, 2)
    for path in books.second:
        path.unlink()
    assert refused(books)
    with pytest.raises(FieldError, match="by"):
        make_head(books.folder, "ward", " ", head=books.head)
    with books.path.open("ab") as file:
        file.write(b'{"torn')
    made = make_head(books.folder, "ward", "Dr. Roe: upgraded", head=books.head)
    assert (made.count, made.by) == (4, "Dr. Roe: upgraded")
    assert books.spent() == 2
    with pytest.raises(FieldError, match="head"):
        make_head(books.folder, "ward", "again", head=books.head)
    books.path.write_bytes(books.path.read_bytes().replace(b'"round": 1', b'"round": 9'))
    with pytest.raises(LedgerError):
        make_head(books.folder, "ward", "me", head=tmp_path / "other head")


def test_the_head_is_shown_without_touching_it(books):
    books.release(1)
    before = {path: path.read_bytes() for path in (books.path, *books.second)}
    assert read_head(books.path, books.head).count == 2
    assert all(path.read_bytes() == content for path, content in before.items())
    books.path.write_bytes(before[books.path].splitlines(keepends=True)[0])
    with pytest.raises(LedgerError, match="put back"):
        read_head(books.path, books.head)


# ---- crashes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_killed_at_any_step_leaves_what_can_be_gone_on_with(tmp_path, monkeypatch):
    writes, syncs, replaces, opened = os.write, os.fsync, os.replace, io.open
    for fatal in itertools.count(1):
        root, (told, tell) = tmp_path / str(fatal), os.pipe()
        books = Books(root)
        books.release(1)
        pid = os.fork()
        if not pid:
            steps = itertools.count(1)

            def at(call, steps=steps, fatal=fatal, halves=False):
                def stepping(*arguments):
                    if next(steps) == fatal:
                        if halves:
                            writes(arguments[0], arguments[1][: len(arguments[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
                    return call(*arguments)

                return stepping

            def opening(*arguments, steps=steps, fatal=fatal, **more):
                file = opened(*arguments, **more)
                if "w" in arguments[1] and next(steps) == fatal:  # an empty file is there
                    os.kill(os.getpid(), signal.SIGKILL)
                return file

            os.write, os.fsync, os.replace, io.open = (
                at(writes, halves=True),
                at(syncs),
                at(replaces),
                opening,
            )
            with books.open() as mine:
                mine.store(mine.ledger.commit(entry(2, OPEN)))
                mine.store(mine.ledger.commit(entry(2, "a")))
                writes(tell, b"left")
            os._exit(0)
        over = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.close(tell)
        left = os.read(told, 4)
        os.close(told)
        with books.open() as mine:  # never refused
            known = mine.ledger.find((2, "protect"))
            assert not left or known.digest == "a"  # what left is known
            for digest in [OPEN, "a"][
                (known is not None) + (known is not None and known.digest != OPEN) :
            ]:
                mine.store(mine.ledger.commit(entry(2, digest)))
        assert books.spent() == 2
        if over:
            break
    assert (
        fatal == 17
    )  # two writes and their syncs, and four a head: one for the intent, two for the release


# ---- one process at a time


def release_below(cap, folder, head, run, ready):
    """What each of the processes does: one release, where the ledger has fewer entries than `cap`."""
    ready.wait()
    with LifetimeLedger(folder, "ward", run, head=head) as mine:
        if len(mine.ledger.all_entries) < cap:
            time.sleep(0.05)
            for digest in (OPEN, "a"):
                mine.store(mine.ledger.commit(entry(1, digest)))
            sys.exit(RELEASED)


RELEASED = 7


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_six_processes_release_the_one_that_is_left(books, tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.files.locked.PATIENCE", 60.0)  # as it is: all six get in
    # through three names of its folder, while a cleaner deletes every lock that lies about
    books.release(1, 2)
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(books.folder)
        (tmp_path / f"head-{name}").symlink_to(books.head)
    inside = tmp_path / "c"
    inside.mkdir()
    (inside / "ward.jsonl").symlink_to(books.path)
    folders = [books.folder, tmp_path / "a", tmp_path / "b", inside, books.folder, inside]
    heads = [
        books.head,
        tmp_path / "head-a",
        tmp_path / "head-b",
        books.head,
        books.head,
        tmp_path / "head-a",
    ]
    forks = multiprocessing.get_context("fork")  # six interpreters would import the library
    ready = forks.Barrier(len(folders))
    processes = [
        forks.Process(target=release_below, args=(3, folder, head, f"run-{i}", ready))
        for i, (folder, head) in enumerate(zip(folders, heads, strict=True))
    ]
    try:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            for file in (*tmp_path.rglob("*.lock"), *tmp_path.rglob(".lock")):
                file.unlink(missing_ok=True)
            time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert sorted(process.exitcode for process in processes) == [0, 0, 0, 0, 0, RELEASED]
    assert books.spent() == 3


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_ledger_with_a_second_name_is_refused_also_while_it_is_open(books, tmp_path):
    books.release(1)
    with books.open() as mine:
        os.link(books.path, tmp_path / "kept.jsonl")
        with pytest.raises(LedgerError, match="hard links"):
            mine.store(mine.ledger.commit(entry(2, OPEN)))
    assert refused(books)
    (tmp_path / "kept.jsonl").unlink()
    assert books.spent() == 1


def test_a_ledger_exchanged_while_it_is_open_takes_no_line(books, tmp_path):
    books.release(1)
    with books.open() as mine:
        shutil.copy(books.path, tmp_path / "copy")
        os.replace(tmp_path / "copy", books.path)
        with pytest.raises(LedgerError, match="replaced"):
            mine.store(mine.ledger.commit(entry(2, OPEN)))
    assert books.spent() == 1


def test_copies_of_a_ledger_are_not_used_at_the_same_time(books, tmp_path):
    books.release(1)
    shutil.copytree(books.folder, tmp_path / "copy")
    other = LifetimeLedger(tmp_path / "copy", "ward", "run", head=books.head)
    with books.open(), pytest.raises(LedgerError, match="in use"), other:
        pass
    books.release(2)
    with pytest.raises(LedgerError, match="put back"), other:  # nor one after the other
        pass


def test_locking_leaves_the_ledger_as_it_is(books):
    books.release(1)
    before = books.path.read_bytes()
    with books.open(), pytest.raises(LedgerError, match="in use"), books.open():
        pass
    assert books.path.read_bytes() == before
    assert sorted(path.name for path in books.folder.iterdir()) == ["ward.jsonl"]
