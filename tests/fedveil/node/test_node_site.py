"""A node's folder: modes of its files, the commands in the place of Flower's, what a check tells, starting twice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.engines.lifetime import read_head
from fedveil.errors import FedVeilError, FieldError
from fedveil.node import launch, site
from fedveil.node.guard import NodePolicy
from node_kit import bundle, hash_of

pytestmark = pytest.mark.flower


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "node"
    done = CliRunner().invoke(
        app,
        [
            "node",
            "init",
            str(folder),
            "--head",
            str(tmp_path / "heads"),
            "--dataset",
            "ward",
            "--by",
            "Dr. Roe",
        ],
    )
    assert done.exit_code == 0, done.output
    return folder


def test_init_writes_files_that_no_other_user_opens(made, tmp_path):
    files = [
        made / "policy.toml",
        made / "ledgers" / "ward.jsonl",
        tmp_path / "heads" / "ward.head",
    ]
    files.append(tmp_path / "heads" / "ward.key")
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert {
        f.stat().st_mode & 0o777 for f in (made, made / "bin", made / "ledgers", tmp_path / "heads")
    } == {0o700}
    assert read_head(made / "ledgers" / "ward.jsonl", tmp_path / "heads").count == 0
    node = NodePolicy.read(made / "policy.toml")
    assert node.admission.apps == ()
    assert node.costs.trust == ("local",)


def test_init_replaces_nothing(made, tmp_path):
    again = [
        "node",
        "init",
        str(made),
        "--head",
        str(tmp_path / "h2"),
        "--dataset",
        "other",
        "--by",
        "x",
    ]
    assert CliRunner().invoke(app, again).exit_code == 2
    assert not (tmp_path / "h2").exists()


def test_what_is_to_decide_can_be_decided_by_uncommenting(made):
    path = made / "policy.toml"
    words = (
        "methods",
        "deadline",
        "record_epsilon",
        "signers",
        "client",
        "projects",
        "federations",
        "accounts",
        "runs",
    )
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(ln[2:] if ln.startswith(tuple(f"# {w} =" for w in words)) else ln for ln in lines)
    )
    node = NodePolicy.read(path)
    assert node.costs.total.record_epsilon is not None
    assert node.admission.client == "hospital.app:client"
    assert node.admission.runs == ()


def test_every_command_of_a_task_is_ours_whatever_path_was(made):
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    assert set(TASK_TYPE_TO_COMMAND.values()) == {launch.CLIENT, *launch.OTHERS}
    for given in (
        {},
        {"PATH": ""},
        {"PATH": "/usr/bin:/bin"},
        {"PATH": str(Path(sys.executable).parent)},
    ):
        own = site.environment(made, given)
        for command in TASK_TYPE_TO_COMMAND.values():
            assert shutil.which(command, path=own["PATH"]) == str(made / "bin" / command)
        assert shutil.which("flower-superexec", path=own["PATH"])
        assert own["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_flower_reports_nothing_home_whatever_the_shell_says(made):
    own = site.environment(made, {"FLWR_TELEMETRY_ENABLED": "1"})
    assert own["FLWR_TELEMETRY_ENABLED"] == "0"


def test_what_flower_starts_is_a_command_that_releases_nothing_when_it_cannot(made):
    command = made / "bin" / "flwr-clientapp"
    words = [
        "--runtime-api-address",
        "127.0.0.1:9",
        "--token",
        "x",
        "--root-certificates",
        "/nowhere",
    ]
    done = subprocess.run(
        [command, *words], capture_output=True, text=True, env=os.environ, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "fedveil" in command.read_text()


def test_a_flower_that_is_not_known_runs_nothing(monkeypatch, made):
    monkeypatch.setitem(sys.modules, "flwr.supernode.runtime.run_clientapp", None)
    words = ["--runtime-api-address", "127.0.0.1:9", "--token", "x", "--insecure"]
    assert launch.main([str(made / "policy.toml"), "flwr-clientapp", *words]) == 1


def test_a_site_starts_once(made, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *a: started.append(a))
    site.start(made, ["flower-supernode", "--superlink", "x"])
    program, words, own = started[0]
    assert words[1:] == ["--superlink", "x"]
    assert Path(program).name == "flower-supernode"
    assert own["PATH"].startswith(str(made / "bin"))
    with pytest.raises(FedVeilError, match="already"):
        site.start(made, ["flower-supernode"])
    with pytest.raises(FieldError):
        site.start(made, ["flower-nothing"])


def test_a_site_does_not_start_with_a_policy_that_others_write(made):
    (made / "policy.toml").chmod(0o666)
    with pytest.raises(FieldError, match="chmod"):
        site.start(made, ["flower-supernode"])


def found(made):
    return {f.what: f for f in site.check_site(made)}


def test_check_says_what_binds_and_what_does_not(made, monkeypatch, tmp_path):
    one = found(made)
    assert one["code"].binds == "no"
    assert one["warm executors"].binds == "no"
    assert one["Kubernetes"].binds == "not seen"
    assert one["isolation subprocess"].binds == "yes"
    assert one["ledger"].binds == "yes"
    assert one["a SuperNode started without it"].binds == "no"
    monkeypatch.setenv("PATH", str(made / "bin"))
    assert found(made)["a SuperNode started without it"].binds == "yes"
    policy = made / "policy.toml"
    policy.write_text(USABLE)
    done = CliRunner().invoke(app, ["node", "check", str(made)])
    assert done.exit_code == 0, done.output
    (tmp_path / "heads" / "ward.key").chmod(0o640)
    assert found(made)["ledger"].binds == "no"
    (made / "bin" / "flwr-agentapp").unlink()
    assert found(made)["flwr-agentapp"].binds == "no"
    assert CliRunner().invoke(app, ["node", "check", str(made)]).exit_code == 2
    policy.chmod(0o602)
    assert [f.binds for f in site.check_site(made)] == ["no"]


# a policy with which something can leave: `pytest` is a package that is installed, and has not to be a client
USABLE = """\
trust = ["local"]
[total]
participations = 3
[node]
client = "pytest:app"
ledger = "ledgers"
head = "../heads"
dataset = "ward"
"""
SUM = """\
[sum]
peers = ["{}", "{}"]
least_sites = {}
colluding = {}
"""
LOCAL = 'trust = ["local"]'


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("code", '"pytest:app"', '"not_there_at_all:app"'),
        ("code", '"pytest:app"', '"not_there_at_all.inner.app:app"'),
        ("code", '"pytest:app"', '".pytest:app"'),
        ("code", 'client = "pytest:app"', ""),
        ("code", "[node]", "[node]\napps = []"),
        ("code", 'client = "pytest:app"', "apps = []\nsigners = []"),
        ("code", f'{LOCAL}\n[total]\nparticipations = 3\n[node]\nclient = "pytest:app"',
         f'{LOCAL}\nmethods = ["record"]\n[total]\nrecord_epsilon = 3\n[node]\napps = ["{"a" * 64}"]'),
        ("runs", "[node]", "[node]\naccounts = []"),
        ("total", "participations = 3", ""),
        ("trust", LOCAL, "trust = []"),
        ("trust", LOCAL, f"{LOCAL}\nmethods = []"),
        ("secure sum", LOCAL, 'trust = ["local", "secure sum"]'),
        ("policy", f"{LOCAL}\n", 'trust = ["secure sum"]\n' + SUM.format("a" * 64, "b" * 64, 4, 1)),
        ("policy", f"{LOCAL}\n", 'trust = ["secure sum"]\n' + SUM.format("a" * 64, "b" * 64, 3, 2)),
    ],
)  # fmt: skip
def test_check_says_no_where_nothing_could_leave(made, what, before, after):
    policy = made / "policy.toml"
    policy.write_text(USABLE)
    assert not [f for f in site.check_site(made) if f.binds == "no" and f.needed]
    assert before in USABLE
    policy.write_text(USABLE.replace(before, after))
    assert what in {f.what for f in site.check_site(made) if f.binds == "no" and f.needed}
    assert CliRunner().invoke(app, ["node", "check", str(made)]).exit_code == 2


def test_check_does_not_import_the_client(made, tmp_path, monkeypatch):
    (tmp_path / "careful_client.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (made / "policy.toml").write_text(USABLE.replace("pytest:", "careful_client.inner:"))
    assert found(made)["code"].binds == "yes"
    assert not (tmp_path / "ran").exists()


def test_a_sum_that_this_site_can_be_part_of_is_in_order(made):
    (made / "policy.toml").write_text(
        USABLE.replace(
            f"{LOCAL}\n", 'trust = ["secure sum"]\n' + SUM.format("a" * 64, "b" * 64, 3, 1)
        )
    )
    assert found(made)["secure sum"].binds == "not seen"
    assert not [f for f in site.check_site(made) if f.binds == "no" and f.needed]


def test_a_central_server_needs_no_total(made):
    (made / "policy.toml").write_text(
        USABLE.replace("participations = 3", "").replace(LOCAL, 'trust = ["central"]')
    )
    assert not [f for f in site.check_site(made) if f.binds == "no" and f.needed]


def test_the_table_of_secure_sums_is_there_to_be_filled(made):
    path = made / "policy.toml"
    assert NodePolicy.read(path).costs.sum is None
    text = path.read_text()
    for line in ("[sum]", "peers =", "least_sites =", "colluding =", "attempts ="):
        assert f"\n# {line}" in text
        text = text.replace(f"\n# {line}", f"\n{line}")
    path.write_text(
        text.replace('["<64 hexadecimal digits>", "..."]', f'["{"a" * 64}", "{"b" * 64}"]')
    )
    terms = NodePolicy.read(path).costs.sum
    assert (len(terms.peers), terms.least_sites, terms.colluding, terms.attempts) == (2, 3, 1, 3)


def test_hash_and_approval_on_the_command_line(tmp_path):
    from datetime import UTC, datetime

    from fedveil.node.bundle import APPROVAL, approved

    fab, key = tmp_path / "app.fab", tmp_path / "keys" / "signer"
    fab.write_bytes(bundle())
    call = CliRunner().invoke
    assert call(app, ["node", "hash", str(fab)]).output.strip() == hash_of(bundle())
    public = call(app, ["node", "key", str(key)]).output.strip()
    done = call(app, ["node", "sign", str(fab), "--key", str(key), "--until", "2999-01-31"])
    name, _, line = done.output.strip().partition("=")
    assert name == APPROVAL
    assert approved([public], hash_of(bundle()), line.strip('"'), datetime.now(UTC))
    assert (
        call(app, ["node", "sign", str(fab), "--key", str(key), "--until", "2001-01-31"]).exit_code
        == 2
    )
