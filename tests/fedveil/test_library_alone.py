"""The library without the laboratory: what it does, what it loads, and what it says of names that are not there."""

from pathlib import Path

import pytest

from library_kit import alone, loaded

ROUND = """
import torch
import fedveil as fv
x = torch.randn(60, 4)
clients = [(x[i::3], (x[i::3].sum(1) > 0).long()) for i in range(3)]
method = fv.GlobalDP(fv.FedAvg(), noise_multiplier=1.0, clip=0.5)
made = fv.Federation(model=torch.nn.Linear(4, 2), clients=clients, method=method, seed=1).run(rounds=2)
print(made.guarantee)
"""
FLOWER = """
import fedveil.flower
from fedveil.flower import FedVeilStrategy, ServerFolder, privacy_mod, run_in_process
"""
FLARE = """
from fedveil.nvflare import FedVeilController, JobGuard, PrivacyFilter, ReleaseFilter
"""
NODE = """
from fedveil.node import bundle, calls, guard, isolation, launch, site, worker
"""
BOOKS = """
import fedveil.evidence, fedveil.files
from fedveil.evidence import read_books, spent_of
"""


def test_nothing_of_the_laboratory_is_loaded(tmp_path):
    assert loaded(ROUND + BOOKS, tmp_path) == "[]"
    alone(ROUND + BOOKS, tmp_path)


@pytest.mark.flower
def test_a_flower_app_and_a_node_load_no_more_than_flower_does(tmp_path):
    pytest.importorskip("flwr")
    plain = "import flwr.app, flwr.clientapp, flwr.serverapp\n"
    assert loaded(plain + FLOWER + NODE, tmp_path) == loaded(plain, tmp_path)


@pytest.mark.nvflare
def test_a_flare_site_loads_no_more_than_flare_does(tmp_path):
    pytest.importorskip("nvflare")
    plain = "import nvflare.apis.filter, nvflare.apis.impl.controller, nvflare.app_common.abstract.fl_model\n"
    assert loaded(plain + FLARE, tmp_path) == loaded(plain, tmp_path)


NAMES = """
import fedveil as fv
for name in ("compare", "audit", "Config", "config", "attacks", "games", "grid", "runs", "Compared", "OwnAudit"):
    assert name not in fv.__all__ and name not in dir(fv), name
    try:
        getattr(fv, name)
    except ImportError as error:
        assert "fedveil-lab" in str(error) and f"fedveil.{name}" in str(error), error
    else:
        raise AssertionError(name)
    try:
        exec(f"from fedveil import {name}")
    except ImportError as error:
        assert "fedveil-lab" in str(error), error
    else:
        raise AssertionError(name)
import fedveil.report.table, fedveil.report.statement.books, fedveil.config.folders, fedveil.engines.files
from fedveil.runs import deployed, disk, rows
assert fedveil.report.table.Table and fedveil.report.statement.books.read_books and deployed.ServerFolder
assert disk.FolderLock and rows.parse_row
from fedveil import *
assert Federation and GlobalDP
for line in ("import fedveil.config.first", "import fedveil.report.planning", "import fedveil.own",
             "from fedveil.runs import Summary", "from fedveil.config import first", "import fedveil.games"):
    try:
        exec(line)
    except ModuleNotFoundError as error:
        assert "fedveil-lab" in str(error), error
    else:
        raise AssertionError(line)
"""


def test_names_of_the_laboratory_say_what_to_install(tmp_path):
    alone(NAMES, tmp_path)


COMMANDS = """
import sys
from fedveil.cli import app
from click.testing import CliRunner
def call(*words):
    return CliRunner().invoke(app, words)
for words in (["--help"], ["plan", "--epsilon", "8", "--delta", "1e-5", "--rounds", "2"],
              "advise --clients 10 --examples 144 --dimension 650 --rounds 60 --epsilon 4".split(),
              ["ledger", "check", STORED + "/report/report.json", "--ledgers", STORED + "/run"],
              ["keys", "new", "study.key"], ["ledger", "begin", "ledgers/scans.jsonl", "--by", "me", "--head", "heads"],
              ["ledger", "show", "ledgers/scans.jsonl", "--head", "heads"]):
    done = call(*words)
    assert done.exit_code == 0, (words, done.output, done.exception)
for words in (["run", "digits-record"], ["report", "run"], ["plan", "digits-record"], ["reproduce"]):
    done = call(*words)
    assert done.exit_code == 2 and "pip install fedveil-" in done.stderr, (words, done.output)
"""


def test_the_small_command(tmp_path):
    stored = Path(__file__).parent / "evidence" / "stored"
    alone(f"STORED = {str(stored)!r}\n{COMMANDS}", tmp_path)
