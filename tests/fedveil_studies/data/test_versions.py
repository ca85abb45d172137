"""Files of another version, by one changed value, and absent ones: refused before anything runs, for every row."""

import gzip
import os

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.data import SOURCES
from fedveil.data.sets import find
from fedveil_lab.runs import deal

TABLES = {"heart": "fed-heart", "stays": "readmission", "mnist": "mnist-by-writer"}
PRESETS = {"heart": "fed-heart", "stays": "readmission", "mnist": "mnist-scattering"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of data; what is under test runs beside it."""
    found = {table: find(SOURCES[name].files[0][0]) for table, name in TABLES.items()}
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("FEDVEIL_DATA", str(data))
    monkeypatch.setenv("FEDVEIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for known in (deal._digest, deal._loaded):  # one process has one folder of data, but in tests
        known.cache_clear()
    return data, found


def changed_text(path, where):
    """Write a copy whose one digit is another one; the same packing."""
    pack = gzip.open if path.suffix == ".gz" else open
    with pack(path, "rb") as file:
        text = bytearray(file.read())
    place = text.index(b"145.0") if path.suffix != ".gz" else text.index(b"[0-10)") + 1
    text[place] ^= 1
    with gzip.open(where, "wb", compresslevel=1) if pack is gzip.open else where.open("wb") as f:
        f.write(bytes(text))


def changed_pixel(path, where):
    """Write a copy in which one pixel of one training image is a grey level brighter or darker."""
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["train_images"][123, 14, 14] ^= 1
    np.savez(where, **arrays)


def refused(arguments, tmp_path, name):
    """Run a command that has to be refused; nothing may have been trained."""
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    said = " ".join(result.output.split())
    assert result.exit_code == 2, result.output
    assert SOURCES[name].official.partition(";")[0] in said
    assert not list(tmp_path.rglob("metrics.jsonl"))
    return said


@pytest.mark.parametrize("table", TABLES)
def test_an_absent_file_ends_every_row_and_preset_before_it_runs(table, folder, tmp_path):
    file = SOURCES[TABLES[table]].files[0][0]
    for arguments in (["reproduce", "published", "--table", table], ["run", PRESETS[table]]):
        assert f"{file}, which was not found" in refused(arguments, tmp_path, TABLES[table])


@pytest.mark.data
def test_a_row_whose_file_is_there_waits_for_the_others(folder, tmp_path):
    data, found = folder
    if found["heart"] is None:
        pytest.skip("the hearts are not here")
    os.symlink(found["heart"], data / found["heart"].name)
    both = ["reproduce", "published", "--table", "heart", "--table", "stays"]
    assert "diabetes_130" in refused(both, tmp_path, "readmission")


@pytest.mark.few(1)
@pytest.mark.data
@pytest.mark.parametrize("table", TABLES)
def test_one_changed_byte_is_another_version(table, folder, tmp_path):
    data, found = folder
    path = found[table]
    if path is None:
        pytest.skip("the file is not here")
    (changed_pixel if path.suffix == ".npz" else changed_text)(path, data / path.name)
    for arguments in (["reproduce", "published", "--table", table], ["run", PRESETS[table]]):
        assert "another version" in refused(arguments, tmp_path, TABLES[table])
