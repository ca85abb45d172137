"""The wheels as a stranger gets them: built, installed beside a PyTorch that is there, and used: `make wheels`."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheels
ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def called(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    called(
        [
            *PIP,
            "wheel",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(ROOT),
            str(ROOT / "lab"),
            str(ROOT / "studies"),
        ]
    )
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """A folder that stands before everything else that Python finds; its own dependencies are there already."""
    folder = tmp_path_factory.mktemp("installed")
    called([*PIP, "install", "--no-deps", "--target", str(folder), *map(str, wheels.values())])
    return folder


def run(installed, *arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return called([sys.executable, "-P", *arguments], cwd=cwd, env=environment)


def test_the_library_is_without_the_laboratory_and_has_what_it_reads(wheels):
    assert set(wheels) == {"fedveil", "fedveil_lab", "fedveil_studies"}
    names = zipfile.ZipFile(wheels["fedveil"]).namelist()
    assert all(name.split("/")[0].startswith("fedveil") for name in names)
    assert not [
        name
        for name in names
        if name.startswith(("fedveil_lab/", "fedveil_studies/", "tests/", "results/"))
    ]
    assert [name for name in names if name.endswith("/py.typed")]
    [bill] = [name for name in names if name.endswith(".dist-info/sboms/sbom.cdx.json")]
    held = json.loads(zipfile.ZipFile(wheels["fedveil"]).read(bill))
    assert held["metadata"]["component"]["version"] == wheels["fedveil"].name.split("-")[1]
    laboratory = zipfile.ZipFile(wheels["fedveil_lab"]).namelist()
    assert not [name for name in laboratory if name.startswith(("fedveil/", "fedveil_studies/"))]
    for suffix in (
        "/py.typed",
        "presets/digits-record.toml",
        "report.html.j2",
        "card.yaml.j2",
        "words.toml",
    ):
        assert [name for name in laboratory if name.endswith(suffix)]
    studies = zipfile.ZipFile(wheels["fedveil_studies"])
    assert [name for name in studies.namelist() if name.endswith("study.toml")]
    version = wheels["fedveil"].name.split("-")[1]
    assert {path.name.split("-")[1] for path in wheels.values()} == {version}
    for package, pinned in {
        "fedveil_lab": ["fedveil"],
        "fedveil_studies": ["fedveil", "fedveil-lab"],
    }.items():
        wheel = zipfile.ZipFile(wheels[package])
        [metadata] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        for name in pinned:
            assert f"Requires-Dist: {name}=={version}" in wheel.read(metadata).decode()


def test_the_first_command_runs_and_its_runs_can_be_reported(installed, tmp_path):
    where = run(
        installed,
        "-c",
        "import fedveil, fedveil_studies; print(fedveil.__file__, fedveil_studies.__file__)",
        cwd=tmp_path,
    )
    assert all(path.startswith(str(installed)) for path in where.split())
    said = run(
        installed, "-m", "fedveil", "compare", "hospitals-breast", "--out", "first", cwd=tmp_path
    )
    assert "client-level" in said
    run(installed, "-m", "fedveil", "report", "first", cwd=tmp_path)
    told = run(
        installed,
        "-m",
        "fedveil",
        "report",
        "--verify",
        "first/report/report.json",
        "--ledgers",
        "first",
        cwd=tmp_path,
    )
    assert "DIFFERS" not in told
    assert "metric-privacy" in run(installed, "-m", "fedveil", "reproduce", "--list", cwd=tmp_path)
