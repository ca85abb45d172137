"""The Containerfile copies what is there, runs as nobody of importance, and holds nothing of a site."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "deployment" / "Containerfile"


def instructions():
    """Pairs of an instruction and its words, lines joined."""
    joined = FILE.read_text().replace("\\\n", " ")
    lines = [
        line.split(maxsplit=1)
        for line in joined.splitlines()
        if line.strip() and not line.startswith("#")
    ]
    return [(first, rest) for first, rest in lines]


def copied():
    """What the image takes from the checkout."""
    words = [
        words.split() for kind, words in instructions() if kind == "COPY" and "--from" not in words
    ]
    return [source for *names, _ in words for source in names]


def test_what_is_copied_from_the_checkout_is_there():
    assert {"src", "examples/deployment/hospital.py", "constraints.txt"} <= set(copied())
    assert all((ROOT / source).exists() for source in copied())


@pytest.mark.slow
def test_the_package_builds_from_what_is_copied_alone(tmp_path):
    place = tmp_path / "image"
    place.mkdir()
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place / source)
        else:
            shutil.copy(ROOT / source, place)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    command = [*pip, "--wheel-dir", str(tmp_path), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(tmp_path.glob("fedveil-*.whl"))


def test_it_ends_as_an_ordinary_user_whose_volumes_are_its_own():
    last = dict(instructions())
    assert int(last["USER"]) > 0
    made = " ".join(words for kind, words in instructions() if kind == "RUN")
    assert f"--uid {last['USER']}" in made
    assert "--mode 700 /site /head" in made
    assert last["VOLUME"] == '["/site", "/head"]'


def test_the_page_asks_the_image_for_commands_that_there_are():
    from fedveil.cli import app
    from fedveil.node.site import POLICY

    page = (ROOT / "docs" / "container.md").read_text()
    asked = set(re.findall(r"(?:fedveil-node|\\\n\s+) ?(init|check|start) /site", page))
    assert asked == {"init", "check", "start"}
    assert asked <= set(app.get_command(None, "node").list_commands(None))
    assert POLICY in page


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint")
def test_the_linter_says_nothing():
    done = subprocess.run(["hadolint", str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
