"""The command line in fresh processes: every `--help`, every preset, and every command that a page or a help names."""

import re
import shlex
import sys

import click
import pytest

from blocks_kit import PAGES, ROOT, fresh
from fedveil.cli import app
from fedveil_lab.config import presets

ROOT_COMMAND = app


def inner(command):
    """Commands of a command, by name."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def commands(command=ROOT_COMMAND, words=()):
    """Every command, by its words."""
    yield words, command
    for name, below in inner(command).items():
        yield from commands(below, (*words, name))


COMMANDS = dict(commands())
HELPS = """
import sys
from fedveil.cli import app
for words in {words!r}:
    try:
        app([*words, "--help"])
    except SystemExit as end:
        assert end.code in (0, None), words
"""
PRESETS = """
from fedveil.cli import app
for name in {names!r}:
    try:
        app(["presets", name])
    except SystemExit as end:
        assert end.code in (0, None), name
"""


def test_every_help_in_one_fresh_process(tmp_path):
    done = fresh(
        [sys.executable, "-c", HELPS.format(words=[list(words) for words in COMMANDS])], tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(COMMANDS)


def test_every_preset_is_printed_in_a_fresh_process(tmp_path):
    """One alone as it is typed, and all of them in a second process."""
    first, *_ = presets()
    done = fresh([sys.executable, "-m", "fedveil", "presets", first], tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'name = "{first}"' in done.stdout
    done = fresh([sys.executable, "-c", PRESETS.format(names=list(presets()))], tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(f'name = "{name}"' in done.stdout for name in presets())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [[*words, "--help"] for words in COMMANDS] + [["presets", n] for n in presets()],
    ids=str,
)
def test_each_alone(words, tmp_path):
    done = fresh([sys.executable, "-m", "fedveil", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# ---- commands named in a sentence

MENTION = re.compile(r"`(fedveil [^`\n]+)`")
NO_COMMANDS = {"approval", "approves"}  # words behind the package's name that are no command


def unknown(text):
    """What of a command is not there: its name, or one of its options."""
    try:
        words = shlex.split(re.sub(r"\.\.\.|\[|\]|[A-Z]+=[A-Z]+", " ", text))[1:]
    except ValueError:
        return "quotes"
    command = ROOT_COMMAND
    while words and words[0] in inner(command):
        command = inner(command)[words.pop(0)]
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        return words[0]
    known = {
        name
        for one in (command, ROOT_COMMAND)
        for p in one.params
        for name in (*p.opts, *p.secondary_opts)
    }
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    foreign = "flower-supernode" in words or command.context_settings.get("ignore_unknown_options")
    return next((o for o in options if o not in known | {"--help"} and not foreign), "")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_command_that_a_page_names_is_there_with_its_options(page):
    mentions = MENTION.findall(page.read_text(encoding="utf-8"))
    assert {text: wrong for text in mentions if (wrong := unknown(text))} == {}


def test_each_command_that_a_help_or_a_refusal_names_is_there():
    helps = [
        text
        for command in COMMANDS.values()
        for text in (command.help or "", *(getattr(p, "help", "") or "" for p in command.params))
    ]
    assert {
        text: wrong
        for help_ in helps
        for text in MENTION.findall(help_)
        if (wrong := unknown(text))
    } == {}
    sources = [
        path
        for folder in ("src", "lab/src", "studies/src")
        for path in (ROOT / folder).rglob("*.py")
    ]
    begun = {
        name
        for path in sources
        for name in re.findall(r"`fedveil ([a-z]+)\b", path.read_text(encoding="utf-8"))
    }
    assert begun
    assert begun <= set(inner(ROOT_COMMAND)) | NO_COMMANDS, begun - set(inner(ROOT_COMMAND))


def test_a_command_that_is_not_there_is_found():
    assert unknown("fedveil presents") == "presents"
    assert unknown("fedveil run x.toml --sets a=1") == "--sets"
    assert unknown("fedveil ledger begun") == "begun"
    assert not unknown("fedveil run x.toml --set a=1 --resume")


@pytest.mark.flower
@pytest.mark.parametrize(
    "words",
    [
        ["node", "hash", "none.fab"],
        ["node", "sign", "none.fab", "--key", "k", "--until", "2999-01-01"],
    ],
)
def test_a_bundle_that_is_not_there_is_refused_in_a_line(words, tmp_path):
    pytest.importorskip("flwr")
    done = fresh([sys.executable, "-m", "fedveil", *words], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
