"""What a run and a report leave behind, with changed bytes: a change is noticed, or the file is refused."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedveil as fv
from fedveil.evidence import REPORT
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import write_report
from fedveil_lab.runs import Summary, run
from fedveil_lab.runs.checkpoint import Checkpoint
from fuzz_kit import REFUSED, bytes_of, outcome, played, trees
from report_kit import CENTRAL, config, verdict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run, and a report of it."""
    folder = tmp_path_factory.mktemp("left")
    run(config(privacy=CENTRAL), folder / "run")
    write_report(gather([folder / "run"], (), None, None), folder / "report")
    assert verdict(folder / "report", [folder / "run"]) == 0
    return folder


def with_file(path: Path, raw: bytes, look):
    """What comes of a look at a folder in which one file is changed; the file is put back."""
    right = path.read_bytes()
    try:
        path.write_bytes(raw)
        return outcome(look)
    finally:
        path.write_bytes(right)


@played(1_500)
@given(st.data())
def test_a_changed_report_never_passes(home, data):
    path = home / "report" / REPORT
    right = path.read_bytes()
    if data.draw(st.booleans()):
        changed = data.draw(trees(json.loads(right)))
        try:
            raw = json.dumps(changed).encode()
        except (TypeError, ValueError):
            return
        if changed == json.loads(right):
            return
    else:
        raw = data.draw(bytes_of(right))
        if raw == right:
            return
    assert with_file(path, raw, lambda: verdict(home / "report", [home / "run"])) != 0


@played(1_000)
@given(st.data())
def test_a_changed_page_or_card_never_passes(home, data):
    name = data.draw(
        st.sampled_from(sorted(p.name for p in (home / "report").iterdir() if p.name != REPORT))
    )
    path = home / "report" / name
    right = path.read_bytes()
    raw = data.draw(bytes_of(right))
    if raw != right:
        assert with_file(path, raw, lambda: verdict(home / "report", [home / "run"])) != 0


@played(1_500)
@given(st.data())
def test_a_changed_summary_is_refused_or_read(home, data):
    path = home / "run" / "summary.json"
    right = path.read_bytes()
    raw = data.draw(bytes_of(right))
    if data.draw(st.booleans()):
        try:
            raw = json.dumps(data.draw(trees(json.loads(right)))).encode()
        except (TypeError, ValueError):
            return
    with_file(path, raw, lambda: Summary.read(home / "run"))
    with_file(path, raw, lambda: gather([home / "run"], (), None, None))


@played(2_000)
@given(st.data())
def test_a_changed_description_is_refused_or_loads_the_same_weights(home, data):
    path = home / "run" / "model.json"
    right = path.read_bytes()
    raw = data.draw(bytes_of(right))
    if data.draw(st.booleans()):
        try:
            raw = json.dumps(data.draw(trees(json.loads(right)))).encode()
        except (TypeError, ValueError):
            return
    with_file(path, raw, lambda: fv.load(home / "run"))


@played(1_000)
@given(st.data())
def test_changed_weights_are_refused(home, data):
    path = home / "run" / "model.safetensors"
    right = path.read_bytes()
    raw = data.draw(bytes_of(right))
    found = with_file(path, raw, lambda: fv.load(home / "run"))
    assert found is REFUSED or raw == right


@played(1_000)
@given(st.data())
def test_a_changed_checkpoint_is_refused_or_whole(home, tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "checkpoint"
    if not folder.is_dir():
        shutil.copytree(home / "run", folder)
    files = [
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "ledger" not in p.parts and p.suffix != ".csv"
    ]
    path = data.draw(st.sampled_from(files))
    raw = data.draw(bytes_of(path.read_bytes()))
    with_file(path, raw, lambda: Checkpoint.read(folder))
