"""Every command and code block of the pages, in a process of its own: nothing that another import brought helps it.

What cannot run here is listed with its reason, and the list is held to what needs it.
"""

import sys

import pytest

from blocks_kit import PAGES, ROOT, blocks_of, fresh, words_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [(block.page, command) for block in BLOCKS for command in block.commands()]

# ---- what does not run here, and why

PROGRAMS = {
    "pip": "installs from an index",
    "make": "builds an environment of its own; CI calls what it calls",
    "flwr": "needs a SuperLink",
    "flower-supernode": "needs a SuperLink",
    "jupyter": "stays open; tests/notebooks runs what it opens",
    "export": "is a shell's",
    "podman": "needs a container engine",
}
BECOMES = {"fedveil node start": "becomes a SuperNode, which needs a SuperLink (tests/deploy)"}
STARTS = {  # beginnings of commands, each of which is refused here, in a line
    "fedveil apply": "needs a run of a model of pages (tests/fedveil/data/test_documents.py)",
    "fedveil compare metric-privacy-homogeneous": "needs the papers' images",
    "fedveil reproduce metric-privacy --table 5 --row fedavg --scale": "needs the papers' images",
    "fedveil reproduce metric-privacy --table 5 --table": "needs the papers' images",
    "fedveil reproduce metric-privacy --table 5 --seeds": "needs the papers' images",
    "fedveil reproduce metric-privacy --table 10": "needs the papers' images",
    "fedveil reproduce metric-privacy --seeds 3 --executor": "needs the papers' images, and a cluster of the reader's",
    "fedveil reproduce metric-privacy --figure": "draws what a reproduction left",
    "fedveil reproduce my-paper": "is a study of the reader's",
    "fedveil compare digits-record --seeds 3 --executor": "needs a cluster of the reader's (test_jobs.py)",
    "fedveil audit digits-cia --executor": "needs a cluster of the reader's (test_jobs.py)",
    "fedveil node sign": "approves the reader's bundle",
    "fedveil run mine.toml": "is of the reader's file on docs/data.md; docs/tutorial.md writes one",
    "fedveil predict runs/mine": "is of the reader's run and rows (tests/fedveil/home); docs/tutorial.md has some",
    "fedveil threshold runs/mine": "is of the reader's run and rows (tests/fedveil/home)",
    "fedveil export runs/mine": "is of the reader's run (tests/fedveil/home); docs/tutorial.md has one",
    "fedveil compare mine.toml": "is of the reader's file on docs/grids.md; docs/tutorial.md writes one",
    "fedveil compare cohort.toml": "is of the reader's file",
    "fedveil ledger show ledgers/site-1.jsonl": "is of the reader's site",
    "fedveil report": "is of the reader's runs on docs/report.md; docs/tutorial.md makes some",
    "fedveil ledger head": "makes a head for a ledger that has none, which only older versions left",
}
EXACTLY = {"fedveil init": "asks questions at a terminal"}
PARTS = {  # blocks of code, by their first lines
    "class Study(LightningModule)": "a part of a site's module (test_nvflare_lightning.py)",
    "promise = {": "a part of examples/nvflare-job/job.py, which its tests run",
    "from fedveil.flower import app_loop": "a part of a reader's app (site_kit.py)",
    "import fedveil.nvflare\nfrom nvflare.app_opt": "a part of a job with the reader's network (test_nvflare_recipes.py)",
    "recipe = SwarmLearningRecipe(": "a part of a job with the reader's network (test_nvflare_swarm.py)",
    "import torch\nfrom flwr.app import Message\n": "a client's app (test_secure_sum_app.py)",
    "import torch\nfrom flwr.app import ArrayRecord\n": "its server's app (test_secure_sum_app.py)",
    "import fedveil as fv\n\nmodel = Net()": "a part of a program with the reader's network (test_lora.py)",
}
TYPED_ELSEWHERE = {  # pages whose shells have a test of their own
    "docs/secure-sum-app.md": "tests/docs/test_secure_sum_app.py, and a SuperLink (tests/deploy)",
}
SHOWN = {  # blocks that are neither, by their first lines
    "FedVeilStrategy(method, layout": "parts of a server's app and of a FLARE job (test_kept_rounds.py)",
    "config ──> Cell": "a drawing",
    "quote(broadcast, state)": "a drawing",
    "broadcast -> quote": "a drawing",
    "against  strongest": "what a command printed",
    "global: guarantee": "what a command printed",
    "@GAMES.register": "an outline of a class",
    "import mine": "a file that needs the reader's module",
    "from concurrent.futures import Executor": "a file that needs Ray (test_jobs.py plays another)",
    "class RayExecutor": "a part of it",
    "def ray_workers": "a part of it",
    '{"at"': "what a node wrote",
    '{"method"': "a part of a file of FLARE's",
    '{"scopes"': "a part of a file of FLARE's",
    "my_paper/__init__.py": "a list of files",
    "from fedveil_studies.frame": "a part of a reader's package (tests/fedveil_lab/test_own.py)",
}

# ---- what runs elsewhere, or in small

INSTEAD = {
    "/srv/ward-7": "ward-7",
    "/second-disk/heads": "heads",
    " examples/nvflare-job": f" {ROOT}/examples/nvflare-job",
    " examples/recorded": f" {ROOT}/examples/recorded",
    " examples/nvflare-hello": f" {ROOT}/examples/nvflare-hello",
    "../fedveil-job": "fedveil-job",
    "../fedveil-hello": "fedveil-hello",
    "hospitals-breast": "digits-compare",  # images of MedMNIST
}
SMALLER = {  # beginnings of commands: what is added; of an option that stands twice, the later one counts
    "fedveil audit digits-cia": ["--replicates", "4", "--set", "rounds=2"],
    "fedveil audit digits-sga-ldp": ["--replicates", "4", "--set", "rounds=2"],
    "fedveil audit digits-group": ["--replicates", "1", "--set", "rounds=1"],
    "fedveil audit digits-record": ["--replicates", "1", "--images", "2", "--set", "rounds=1"],
    "fedveil compare digits-cia": ["--audit", "4", "--set", "rounds=2"],
    "fedveil compare --seeds": ["--seeds", "1"],
}
SCANS = """
import os
from PIL import Image, ImageDraw

os.mkdir("scans")
for number in range(9):
    page = Image.new("L", (200, 160), 250)
    for line in range(3):
        ImageDraw.Draw(page).text((20, 30 + 40 * line), f"Total {number}{line} of 4711", fill=0)
    page.save(f"scans/{number}.png")
"""
RATES = """
open("rates.toml", "w").write('''
name = "rates"
rounds = 2
data = { name = "digits", clients = 10 }
model = { name = "logistic" }
privacy = { method = "record", epsilon = 4, delta = 1e-5, rounds = 2, examples = 100, clip = 0.2 }

[compare]
settings = [{ label = "slow", local = { lr = 1e-3 } }, { label = "fast", local = { lr = 1.0 } }]
''')
"""
BEFORE = {  # what a page's reader has, or did on another page
    "docs/commands.md": SCANS + RATES,
    "docs/data.md": SCANS,
    "docs/threat-model.md": "open('policy.toml', 'w').write('[total]\\nrecord_epsilon = 4.0\\nparticipations = 9\\n')",
}
SAVED = {
    "docs/data.md": ('name = "ward"', "ward.toml")
}  # a block, by its first line, and the file that it is
LOUD = {  # pages whose Python gives a warning, on purpose
    "docs/inversion.md": "attacks clients of one example, under noise that drowns them",
    "docs/attacks.md": "attacks a preset whose noise is beyond use (tests/fedveil_lab/config/test_presets.py)",
    "docs/attack-records.md": "the same",
}
ALLOWED = {
    "fedveil node check": (0, 2)
}  # 2: something of the machine's is not in order, and it says so


def reason(command: str) -> str:
    """Why a command does not run here, or ""."""
    listed = {**STARTS, **BECOMES}
    starts = (why for start, why in listed.items() if command.startswith(start))
    return PROGRAMS.get(command.split()[0]) or EXACTLY.get(command) or next(starts, "")


def typed(command: str) -> list[str]:
    """A command of a page as it is run here."""
    added = next((more for start, more in SMALLER.items() if command.startswith(start)), [])
    for written, own in INSTEAD.items():
        command = command.replace(written, own)
    return [*words_of(command), *added]


def ran(words, folder, fine=(0,)):
    done = fresh(words, folder)
    assert "Traceback" not in done.stderr, f"{words}\n{done.stderr}"
    assert done.returncode in fine, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def code_of(page):
    """The Python of a page, in order, as one program."""
    whole = [
        block
        for block in BLOCKS
        if block.page == page and block.kind == "python" and not block.file
    ]
    return "\n".join(block.text for block in whole if not block.text.startswith(tuple(PARTS)))


NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PLAYED = [
    name
    for name in NAMES
    if code_of(name) or any(page == name and not reason(command) for page, command in COMMANDS)
]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PLAYED)
def test_a_page_runs_as_it_stands(page, tmp_path):
    """Its Python as one program, then its commands, one process each, in a folder of the page's own."""
    if page == "docs/flower.md":
        pytest.importorskip("flwr")
    if page == "docs/nvflare.md":
        pytest.importorskip("nvflare")
    for block in BLOCKS:
        first, name = SAVED.get(page, (None, ""))
        if block.page == page and (block.file or block.first == first):
            (tmp_path / (block.file or name)).write_text(block.text)
    for name, code in (("before.py", BEFORE.get(page, "")), ("page.py", code_of(page))):
        (tmp_path / name).write_text(code)
        if code:
            strict = [] if page in LOUD else ["-W", "error::UserWarning"]
            ran([sys.executable, *strict, name], tmp_path)
    for _, command in [one for one in COMMANDS if one[0] == page]:
        if not reason(command) or (page == "docs/tutorial.md" and command.split()[0] == "fedveil"):
            known = (codes for start, codes in ALLOWED.items() if command.startswith(start))
            ran(typed(command), tmp_path, next(known, (0,)))


@pytest.mark.slow
@pytest.mark.parametrize("start", [*STARTS, *EXACTLY])
def test_what_is_listed_as_not_running_does_not_run_and_says_why_in_a_line(
    start, tmp_path, monkeypatch
):
    """If it runs, it is to be taken off the list."""
    for name in ("FEDVEIL_DATA", "FEDVEIL_CACHE", "HOME"):  # no data, and no decoded copies of them
        monkeypatch.setenv(name, str(tmp_path))
    command = next(
        one for page, one in COMMANDS if one.startswith(start) and page != "docs/tutorial.md"
    )
    done = fresh(typed(command), tmp_path, 120)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("\n") < 5


def test_each_reason_is_of_a_command_or_block_that_is_there():
    assert set(PROGRAMS) <= {command.split()[0] for _, command in COMMANDS}
    assert set(EXACTLY) <= {command for _, command in COMMANDS}
    for start in (*STARTS, *BECOMES, *SMALLER, *ALLOWED):
        assert any(command.startswith(start) for _, command in COMMANDS), start
    for start in (*PARTS, *SHOWN):
        assert any(block.text.startswith(start) for block in BLOCKS), start
    for written in INSTEAD:
        assert any(written in command for _, command in COMMANDS), written
    assert set(BEFORE) | set(SAVED) | set(LOUD) <= set(NAMES)


def test_each_block_is_run_or_listed():
    for block in BLOCKS:
        if block.kind == "py":
            assert block.text.startswith(tuple(PARTS)), block
        elif block.kind in ("", "json"):
            assert block.text.startswith(tuple(SHOWN)), block
        elif block.kind == "sh":
            assert block.page in TYPED_ELSEWHERE, block
        else:
            assert block.kind in {"python", "toml", "commands"}, block


# ---- TOML


SAVED_FIRST = {first for first, _ in SAVED.values()}
TABLES = [
    block
    for block in BLOCKS
    if block.kind == "toml" and not block.file and block.first not in SAVED_FIRST
]
DIGITS = 'r"(<64 hexadecimal digits>|b3a1\\.\\.\\.|9c0f\\.\\.\\.|\\.\\.\\.)"'
READ = """
import re, sys, tomllib
text = open("block.toml").read()
values = tomllib.loads(text)
if "tool" in values:
    from flwr.app import Context, RecordDict
    from fedveil.engines.flower.mod import method_from
    def flat(table, before):
        for key, value in table.items():
            yield from flat(value, before + (key,)) if isinstance(value, dict) else [(".".join(before + (key,)), value)]
    run = dict(flat(values["tool"]["flwr"]["app"]["config"], ()))
    print(method_from(Context(1, 1, {"partition-id": 0}, RecordDict(), run)))
elif values.keys() & {"trust", "node", "total"}:
    from fedveil.engines.lifetime import read_policy
    numbers = iter(range(1, 99))
    text = re.sub(PLACE, lambda found: f"{next(numbers):064x}", text)
    open("policy.toml", "w").write(text)
    print(read_policy("policy.toml"))
else:
    from fedveil_lab.config.loading import parse, text_of
    base = tomllib.loads(text_of("digits-compare")[0])
    base = {key: value for key, value in base.items() if key not in ("compare", *values)}
    open("ward_net.py", "w").write("def Net(input_shape, outputs, hidden=1): ...")
    if "data" in values:
        columns = {"age": [0, 120], "thal": ["a", "b"], "chol": [0, 500]}
        table = {"name": "table", "path": "x.csv", "target": "t", "clients": 3, "classes": ["a", "b"]}
        table["columns"] = columns
        values["data"] = table | values["data"]
    print(parse(base | values))
""".replace("PLACE", DIGITS)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize(
    "block", TABLES, ids=[f"{block.page}-{n}" for n, block in enumerate(TABLES)]
)
def test_a_table_is_read(block, tmp_path):
    pytest.importorskip("flwr")
    (tmp_path / "block.toml").write_text(block.text)
    (tmp_path / "read.py").write_text(READ)
    assert ran([sys.executable, "read.py"], tmp_path).stdout
