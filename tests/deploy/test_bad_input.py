"""What goes wrong at a site, on Flower's real chain: a clear word there, a constant one to the server, no release.

One SuperLink and one SuperNode under `fedveil node` serve all runs; the node reads its policy anew for each message.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from chain import SERVER, Chain, certificates, site, wait, write_app
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.cli.build import build_fab_from_disk

from fedveil.engines.lifetime import read_head
from fedveil.errors import FedVeilError
from fedveil.files import read_private
from fedveil.node.bundle import APPROVAL, FIRST, _signed, make_signer
from fedveil.node.guard import WORDS
from fedveil.node.isolation import require_isolation
from test_chain import HEAD, METHOD, PLAIN, released

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
PAGE = 4096  # of a disk in memory
CONFIG = 'fedveil.approval = ""'
NEWER = SERVER.replace(
    "    messages = [", '    content["fedveil.public"]["newer"] = 1\n    messages = ['
)


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    try:
        require_isolation(folder)
    except FedVeilError as error:
        pytest.skip(str(error))
    key, numbers = folder / "approver.key", count()
    rules = f'signers = ["{make_signer(key)}"]'
    # the ledger's first line is so long that the next one begins another page of a disk
    place = site(folder / "site", rules, top="hypotheses_apart = 10.0\ndeadline = 90", by="x" * 20)
    begun = len((place / "ledgers" / "0.jsonl").read_bytes())
    shutil.rmtree(place)
    shutil.rmtree(place.with_name("site-head"))
    site(
        place,
        rules,
        top="hypotheses_apart = 10.0\ndeadline = 90",
        by="x" * (20 + PAGE - 60 - begun),
    )
    app = write_app(folder / "study", "study", HEAD + PLAIN, config=CONFIG)
    with Chain(folder) as chain:

        def approval(app, days=0):
            """Of an app's bundle as it lies there, to a day before or after today."""
            until = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
            signer = Ed25519PrivateKey.from_private_bytes(read_private(key, FIRST, 32))
            signature = signer.sign(
                _signed(hashlib.sha256(build_fab_from_disk(app)).hexdigest(), until)
            )
            return f"{until}:{signature.hex()}"

        def run(app=app, given=None):
            given = approval(app) if given is None else given
            [reply] = chain.run(app, folder / f"{next(numbers)}.json", 400, **{APPROVAL: given})[
                "replies"
            ]
            return reply

        @contextmanager
        def nothing(log):
            """What runs within is answered by a constant word, and the site's log says this; an intent may be noted."""
            before, words, replies = run.ledger.read_text(), run.log.read_text(), []
            yield replies
            assert [reply.get("reason") in WORDS.values() for reply in replies] == [True]
            assert log in run.log.read_text()[len(words) :]
            text = run.ledger.read_text()
            assert text.startswith(before)
            assert {json.loads(line)["digest"] for line in text[len(before) :].splitlines()} <= {
                "open"
            }

        run.chain, run.place, run.app, run.approval, run.nothing = (
            chain,
            place,
            app,
            approval,
            nothing,
        )
        run.ledger, run.log = place / "ledgers" / "0.jsonl", folder / "node0.log"
        run.head = place.with_name("site-head")
        chain.supernode(0, place, more=METHOD)
        wait(lambda: "SuperNode ID" in run.log.read_text(), 120, *chain.logs)
        yield run


@contextmanager
def small_disk(folder):
    """A folder on a disk in memory of its own, with room for no further page; a call makes it read-only."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a disk")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", folder], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)
        with (folder / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(PAGE)):
                pass
        yield lambda: subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_bundle_that_was_changed_after_it_was_signed(held, tmp_path):
    changed = shutil.copytree(held.app, tmp_path / "study")
    given = held.approval(changed)
    with (changed / "study_client.py").open("a") as file:
        file.write("# changed\n")
    with held.nothing("lists no app") as replies:
        replies.append(held(changed, given))


def test_an_approval_that_is_over_by_the_nodes_clock(held):
    with held.nothing("lists no app") as replies:
        replies.append(held(given=held.approval(held.app, -1)))


def test_a_clock_that_was_put_back(held):
    about = held.ledger.stat()
    os.utime(held.ledger, (about.st_atime + 86400, about.st_mtime + 86400))
    try:
        with held.nothing("the clock is") as replies:
            replies.append(held())
    finally:
        os.utime(held.ledger, (about.st_atime, about.st_mtime))


def test_a_ledger_on_a_disk_that_is_full_or_read_only(held):
    with small_disk(held.ledger.parent) as make_read_only:
        with held.nothing("No space left on device") as replies:
            replies.append(held())
        make_read_only()
        with held.nothing("Read-only file system") as replies:
            replies.append(held())


def test_a_head_on_a_full_disk(held):
    """What was begun stays charged, and is not released."""
    with small_disk(held.head), held.nothing("No space left on device") as replies:
        replies.append(held())


def test_a_policy_that_others_write_and_a_key_that_is_missing(held):
    policy, key = held.place / "policy.toml", held.head / "0.key"
    policy.chmod(0o622)
    with held.nothing("chmod 600") as replies:
        replies.append(held())
    policy.chmod(0o600)
    aside = key.rename(key.with_name("aside"))
    with held.nothing("0.key") as replies:
        replies.append(held())
    aside.rename(key)


def test_a_server_of_another_version(held, tmp_path):
    app = write_app(tmp_path / "newer", "newer", HEAD + PLAIN, NEWER, CONFIG)
    with held.nothing("newer") as replies:
        replies.append(held(app))


def test_a_site_that_starts_twice_and_two_jobs_at_once_after_all_that(held):
    """The first start goes on, and the two jobs take their turns on the ledger."""
    words = [
        "node",
        "start",
        str(held.place),
        "flower-supernode",
        "--superlink",
        f"127.0.0.1:{held.chain.port}",
    ]
    again = subprocess.run(
        [sys.executable, "-m", "fedveil", *words],
        env=held.chain.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.returncode == 2
    assert "already" in again.stderr + again.stdout
    before = held.ledger.read_text().count("\n")
    with ThreadPoolExecutor(2) as pool:
        for reply in pool.map(lambda _: held(), range(2)):
            values = released(reply)
            assert 0 < abs(values[len(values) // 2] - 42) < 21
    lines = [json.loads(line) for line in held.ledger.read_text().splitlines()[before:]]
    assert len(lines) == 4
    assert [line["run"] for line in lines[::2]] == [line["run"] for line in lines[1::2]]
    assert read_head(held.ledger, held.head).count == before + 3


def test_a_certificate_that_is_not_valid_yet(tmp_path):
    with Chain(tmp_path, certificates(tmp_path / "tls", later=48)) as chain:
        chain.supernode(0, site(tmp_path / "site", ""), more=METHOD)
        log = tmp_path / "node0.log"
        wait(
            lambda: "retrying" in log.read_text() or "not yet valid" in log.read_text(),
            90,
            *chain.logs,
        )
        assert "SuperNode ID" not in log.read_text()
