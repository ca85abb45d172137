"""examples/tracking.py: each tracked figure is marked as the experimenter's view or as a release."""

import importlib.util
from pathlib import Path

import pytest

import fedveil as fv

PLACE = Path(__file__).resolve().parents[3] / "examples" / "tracking.py"


@pytest.fixture(scope="module")
def tracking():
    spec = importlib.util.spec_from_file_location("tracking", PLACE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracked(tracking, **how):
    seen = []
    history = tracking.federation().run(
        2, on_round=tracking.Tracker(lambda f, step: seen.append((step, dict(f))), **how)
    )
    return seen, history


def test_each_figure_says_whose_it_is(tracking):
    seen, history = tracked(tracking)
    assert [step for step, _ in seen] == [1, 2]
    for (_, figures), record in zip(seen, history.rounds, strict=True):
        assert {name.split("/")[0] for name in figures} == {"experimenter", "released"}
        for name, value in record.published.items():
            assert figures[f"released/{name}"] == pytest.approx(value)
        for name, value in record.metrics.items():
            assert figures[f"experimenter/{name}"] == pytest.approx(value)
        assert figures["released/accuracy"] != figures["experimenter/accuracy"]


def test_a_server_that_must_not_see_it_is_sent_releases_alone(tracking):
    seen, _ = tracked(tracking, released_only=True)
    assert seen
    assert all(name.startswith("released/") for _, figures in seen for name in figures)
    quiet, plain = (
        [],
        fv.Federation(model=tracking.torch.nn.Linear(4, 2), clients=tracking.federation().clients),
    )
    plain.run(1, on_round=tracking.Tracker(lambda f, step: quiet.append(f), released_only=True))
    assert quiet == []


def test_the_promise_beside_it_has_all_its_words(tracking):
    _, history = tracked(tracking)
    said = tracking.promise_of(history, 1e-5)["promise"]
    for word in ("zero-out", "client", "central", "total"):
        assert word in said


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "print"])
def test_it_runs_as_it_stands(tracking, kind, tmp_path, monkeypatch):
    if kind != "print":
        pytest.importorskip(kind)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracking.main(
        [kind, (tmp_path / "out").as_uri() if kind == "mlflow" else str(tmp_path / "out")]
    )
    if kind != "print":
        assert any((tmp_path / "out").rglob("*"))
