"""What is written to disks: each act can be done again after it failed, and says what must hold then."""

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp

from fedveil.accounting import OPEN, Entry, Guarantee, Ledger, Spend
from fedveil.accounting.bounds import GDP
from fedveil.engines.closing import close_ledger, require_closed
from fedveil.engines.ledger_sums import read_sums
from fedveil.engines.lifetime import (
    LifetimeLedger,
    begin_ledger,
    ledger_id,
    make_head,
    read_head,
)
from fedveil.engines.site_keys import bind_key, make_key, read_key
from fedveil.errors import FieldError
from fedveil.node.site import begin_site, check_site
from fedveil_lab.config import parse
from fedveil_lab.runs import run

MU = Guarantee(unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(0.1))
SPEND = Spend(guarantee=MU, mechanism="gaussian", scale=(1.0,))


class Act:
    """Something that is written below a folder.

    `before` runs on a disk that does not fail, `act` on one that may. `after` goes on where it was left, and checks;
    `done` says whether `act` came to its end, and then nothing of it may be missing.
    """

    every = 1  # of its steps, that are played

    def before(self, root):
        """What is there already."""

    def act(self, root):
        """Do it, for the first time."""

    def after(self, root, done):
        """Go on, and check."""


class Release(Act):
    """A release from a lifetime ledger: an intent, a line that closes it, and what left then."""

    lines = 1

    def open(self, root, run="run"):
        return LifetimeLedger(root / "ledgers", "ward", run, head=root / "head")

    def before(self, root):
        begin_ledger(root / "ledgers", "ward", by="the tests", head=root / "head")
        for number in range(self.lines):
            self.release(root, 1, f"earlier {number}")

    def release(self, root, round_, run="run"):
        with self.open(root, run) as mine:
            known = mine.ledger.find((round_, "protect"))
            for digest in (OPEN, "a"):
                if known is None or (known.digest == OPEN != digest):
                    one = Entry((round_, "protect"), 0, digest, SPEND, "secure", 5)
                    mine.store(mine.ledger.commit(one))

    def act(self, root):
        self.release(root, 1)

    def after(self, root, done):
        with self.open(root) as mine:
            known = mine.ledger.find((1, "protect"))
            assert not done or known.digest == "a"
        self.release(root, 1)
        self.release(root, 2)
        with self.open(root, "another") as mine:
            assert len(mine.ledger.all_entries) == self.lines + 2
        read_head(root / "ledgers" / "ward.jsonl", root / "head")


class Sums(Release):
    """A release whose opening makes the sums anew."""

    lines = 140
    made = None

    def before(self, root):
        if self.made is None:
            self.made = Path(mkdtemp())
            super().before(self.made)
            (self.made / "head" / "ward.sums").unlink(missing_ok=True)
        for name in ("ledgers", "head"):
            shutil.copytree(self.made / name, root / name)

    def after(self, root, done):
        super().after(root, done)
        with self.open(root) as mine:
            assert read_sums(mine._place, mine._head.ledger).count > 256


class Begun(Release):
    """A lifetime ledger that is begun."""

    def before(self, root):
        pass

    def act(self, root):
        begin_ledger(root / "ledgers", "ward", by="the tests", head=root / "head")

    def after(self, root, done):
        path, head = root / "ledgers" / "ward.jsonl", root / "head"
        if not path.exists():
            assert not done
            if (head / "ward.key").exists():  # the way out that the refusal names
                head = root / "another head"
            begin_ledger(root / "ledgers", "ward", by="again", head=head)
        elif not (head / "ward.head").exists():
            assert not done
            head = root / "another head"
            make_head(root / "ledgers", "ward", "again", head=head)
        with LifetimeLedger(root / "ledgers", "ward", "run", head=head) as mine:
            assert mine.ledger.all_entries == []


class Closing(Release):
    """A lifetime ledger that is closed."""

    def act(self, root):
        self.close(root, "2024")

    def close(self, root, year):
        return close_ledger(
            root / "ledgers", "ward", "the tests", archive=root / year, head=root / "head"
        )

    def after(self, root, done):
        if done:
            archived = root / "2024" / "ward.jsonl"
            require_closed(root / "ledgers" / "ward.jsonl", archived)
        super().after(root, False)
        closed = self.close(root, "2025")
        require_closed(closed.ledger, closed.archive)
        with self.open(root) as mine:
            assert len(mine.ledger.all_entries) == self.lines + 2


class Key(Act):
    """A key of secure sums, which is made and bound to its ledger."""

    made = None

    def before(self, root):
        begin_ledger(root / "ledgers", "ward", by="the tests", head=root / "head")

    def act(self, root):
        self.made = make_key(root / "key").public
        bind_key(root / "key", ledger_id(root / "ledgers", "ward"))

    def after(self, root, done):
        try:
            public = read_key(root / "key").public
        except FieldError:
            assert not done
            (root / "key").unlink(missing_ok=True)  # nothing was agreed on yet
            public = make_key(root / "key").public
        assert not done or self.made in (None, public)
        bind_key(root / "key", ledger_id(root / "ledgers", "ward"))
        begin_ledger(root / "other", "ward", by="the tests", head=root / "other head")
        try:
            bind_key(root / "key", ledger_id(root / "other", "ward"))
        except FieldError:
            return
        raise AssertionError("a key answers from two ledgers")


class Launcher(Act):
    """A node's folder, as `fedveil node init` writes it: policy, ledger, head, key and commands."""

    def act(self, root):
        begin_site(root / "site", root / "head", "ward", "the tests")

    def after(self, root, done):
        site, head = root / "site", root / "head"
        if not done and not (site / "policy.toml").exists():
            site, head = root / "site again", root / "head again"
            begin_site(site, head, "ward", "again")
        findings = {one.what: one for one in check_site(site)}
        assert not done or findings["ledger"].binds == "yes"


class Run(Act):
    """A run in a folder, which is gone on with to the same bits."""

    every = 9
    report = False

    def spec(self):
        values = {
            "name": "tiny",
            "rounds": 2,
            "data": {"name": "breast-cancer", "clients": 3},
            "model": {"name": "logistic"},
            "privacy": {"method": "global", "noise_multiplier": 1.0, "clip": 1.0},
            "source": {"kind": "reproducible"},
        }
        return parse(values)

    def act(self, root):
        run(self.spec(), root / "run")

    def after(self, root, done):
        try:
            run(self.spec(), root / "run", resume=True)
        except FieldError as error:
            if "leave --resume out" not in str(error):  # the way out that it names
                raise
            run(self.spec(), root / "run")
        model = (root / "run" / "model.safetensors").read_bytes()
        run(self.spec(), root / "whole")
        assert model == (root / "whole" / "model.safetensors").read_bytes()
        lines = (root / "run" / "ledger" / "server.jsonl").read_text().splitlines()
        name = json.loads(lines[0])["run"]
        assert [one.key[0] for one in Ledger.parse(name, "server", lines).entries] == [1, 2]


class Report(Run):
    """The page of a run."""

    every = 9

    def before(self, root):
        super().act(root)

    def act(self, root):
        from click.testing import CliRunner

        from fedveil.cli import app

        arguments = ["report", str(root / "run"), "--out", str(root / "page")]
        done = CliRunner().invoke(app, arguments, catch_exceptions=True)
        if done.exit_code:
            if isinstance(done.exception, OSError):
                raise done.exception
            assert done.exit_code == 2, done.output
            raise FieldError("report", "", done.output)

    def after(self, root, done):
        self.act(root)
        assert json.loads((root / "page" / "report.json").read_text())


ACTS = {
    "release": Release(),
    "sums": Sums(),
    "begin": Begun(),
    "close": Closing(),
    "key": Key(),
    "launcher": Launcher(),
    "run": Run(),
    "report": Report(),
}
