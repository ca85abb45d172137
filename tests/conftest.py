"""Shared by every test: hypothesis examples without a deadline, seeded generators, and parts of a long run."""

import atexit
import gc
import os
import random
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from importlib import metadata
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "fedveil", deadline=None, derandomize=True, max_examples=50, print_blob=True
)
settings.load_profile("fedveil")


def renew_entry_points(project: Path) -> None:
    """Let this process and its children see what a checkout's package brings, where what is installed is older."""
    about = tomllib.loads(project.read_text("utf-8"))["project"]
    wanted = about.get("entry-points", {})
    try:
        installed = metadata.distribution(about["name"])
    except metadata.PackageNotFoundError:
        see(project.parent / "src")
        installed = metadata.distribution("fedveil")
        known = set[tuple[str, str, str]]()
    else:
        known = {(one.group, one.name, one.value) for one in installed.entry_points}
    if known >= {
        (group, name, value) for group, own in wanted.items() for name, value in own.items()
    }:
        return
    folder = Path(tempfile.mkdtemp(prefix="fedveil-entries-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    entries = folder / f"{about['name'].replace('-', '_')}-{installed.version}.dist-info"
    entries.mkdir()
    about_it = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {installed.version}\n"
    (entries / "METADATA").write_text(about_it, "utf-8")
    groups = {**({"console_scripts": about["scripts"]} if "scripts" in about else {}), **wanted}
    tables = (
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in own.items())
        for name, own in groups.items()
    )
    (entries / "entry_points.txt").write_text("\n".join(tables), "utf-8")
    see(folder)


def see(folder: Path) -> None:
    """Let this process and its children import what a folder holds."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    )


for _folder in ("", "lab", "studies"):
    if (_project := Path(__file__).parents[1] / _folder / "pyproject.toml").is_file():
        renew_entry_points(_project)


def pytest_addoption(parser):
    group = parser.getgroup("fedveil", "slices of long runs (tests/rotate.py)")
    group.addoption("--part", metavar="K/N", help="of what is selected, the K-th of every N tests")
    group.addoption(
        "--every-case",
        action="store_true",
        help="take all cases of a test, where a mark says how few",
    )
    group.addoption(
        "--until",
        type=float,
        metavar="SECONDS",
        help="skip what would begin later, in seconds since 1970",
    )


def slow_beyond_a_few(items):
    """Of a test's cases, mark those beyond the first few as slow, where it is marked with how many."""
    seen = Counter()
    for item in items:
        if mark := item.get_closest_marker("few"):
            seen[item.function] += 1
            if seen[item.function] > mark.args[0]:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before -m and -k, and after them
def pytest_collection_modifyitems(config, items):
    if not config.option.every_case:
        slow_beyond_a_few(items)
    yield
    if config.option.part:
        take_part(config, items)


def pytest_collection_finish():
    gc.freeze()  # what was collected stays to the end: no later look for garbage goes through it


def take_part(config, items):
    """Of what is selected, keep one part of several."""
    number, count = map(int, config.option.part.split("/"))
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--part {config.option.part}: give K/N with K from 1 to N")
    chosen = items[number - 1 :: count]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def pytest_runtest_setup(item):
    if item.config.option.until and time.time() > item.config.option.until:
        pytest.skip("left out: the time of this slice is over")


@pytest.fixture(autouse=True)
def _seeds():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - third-party code draws from it
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _registries():
    """What a test registers is gone after it."""
    from fedveil.aggregation import AGGREGATORS
    from fedveil.data import SOURCES
    from fedveil.learning.models import MODELS
    from fedveil.methods import METHODS

    before = [(registry, dict(registry)) for registry in (AGGREGATORS, SOURCES, MODELS, METHODS)]
    yield
    for registry, known in before:
        registry.clear()
        registry.update(known)


@pytest.fixture(scope="session")
def patterns(tmp_path_factory):
    """A small data set of four kinds of pattern, for studies."""
    from papers_kit import write_patterns

    path = tmp_path_factory.mktemp("patterns") / "patterns.npz"
    write_patterns(path)
    return path


@pytest.fixture
def receipts(tmp_path, monkeypatch):
    """Pages of a made receipts file, which the source "sroie" then reads without asking for its checksum."""
    from fedveil_studies.data import named
    from receipts_kit import made_receipts

    monkeypatch.setattr(named, "require_version", lambda *given: None)
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    return made_receipts(tmp_path)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made and their files written, but nothing is drawn in them: about half a second less a figure."""
    from matplotlib.figure import Figure

    def left_out(figure, file, draw=Figure.savefig, **how):
        return file.write(b"undrawn") if isinstance(file, BytesIO) else draw(figure, file, **how)

    monkeypatch.setattr(Figure, "savefig", left_out)


@pytest.fixture(scope="module")
def coarse():
    """Losses on a grid a hundred times as coarse, for what asks which noise is found and not to how many digits."""
    from fedveil.accounting import composition, planning

    def forget():
        for remembers in (composition._total_loss, planning._least_noise):
            remembers.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composition, "_INTERVAL", 1e-2)
        forget()
        yield
    forget()
