"""Cells and the store: keys that say what decides the figures, and every cell run once."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from fedveil.accounting import Policy
from fedveil.errors import FieldError
from fedveil.evidence import NUMERICS
from fedveil.learning import LocalTraining
from fedveil_lab.config import load, parse
from fedveil_lab.config.tables import ConfigError, options_of
from fedveil_lab.grid import Cell, Store, cell, distinct
from fedveil_lab.runs import deal
from fedveil_lab.runs.runner import Silent

PINNED = Path(__file__).parent / "defaults.json"
BASE = {
    "name": "tiny",
    "rounds": 2,
    "data": {"name": "digits", "clients": 4},
    "model": {"name": "logistic"},
    "privacy": {"method": "global", "noise_multiplier": 0.5},
}


def config(**changes):
    values = json.loads(json.dumps(BASE))
    for key, value in changes.items():
        table, _, name = key.rpartition("__")
        (values.setdefault(table, {}) if table else values)[name] = value
    return parse(values)


class Said(Silent):
    def __init__(self):
        self.begun = []

    def begin(self, label, done, rounds):
        self.begun.append((label, done))


class Largest:
    """The largest coordinate of the new model."""

    name, figures = "largest coordinate", ("largest",)

    def __call__(self, seen):
        return {"largest": float(seen.models.abs().max())}


def test_a_key_follows_what_decides_the_figures_and_nothing_else():
    plain = Cell("a", config())
    assert (
        plain.key == Cell("b", config(name="other", workers=2, data__holdout=0.2)).key
    )  # .2 is the default
    others = [
        config(seed=1),
        config(data__holdout=0.3),
        config(local__lr=0.2),
        config(privacy__noise_multiplier=1.0),
    ]
    keys = [Cell("a", c).key for c in others]
    keys += [
        Cell("a", config(), (Largest(),)).key,
        Cell("a", config(), sigma_of=Cell("a", others[0])).key,
    ]
    assert len({plain.key, *keys}) == 7


def test_numerics_and_data_are_part_of_the_key(monkeypatch):
    before = Cell("a", config()).key
    monkeypatch.setattr(cell, "data_digest", lambda spec: "0123456789")
    other = Cell("a", config()).key
    assert (other[:12], other[-6:]) == (before[:12], "012345")
    for path in NUMERICS:
        monkeypatch.setitem(NUMERICS, path, 3)
    assert Cell("a", config()).numerics == 3  # as in files of one number for all


def test_a_key_holds_the_numbers_of_the_paths_it_takes_alone(monkeypatch):
    record = {"method": "record", "examples": 10, "noise_multiplier": 1.0}
    person = {
        "method": "record",
        "unit": "person",
        "people": 10,
        "records_per_person": 3,
        "noise_multiplier": 1.0,
    }
    cells = {
        "record": config(privacy=record),
        "person": config(privacy=person),
        "sequential": config(trainer="sequential"),
        "stacked": config(trainer="batched"),
        "either": config(),
    }
    before = {name: Cell("a", c).key for name, c in cells.items()}
    for path, moved in (
        ("record", {"record"}),
        ("person", {"person"}),
        ("sequential", {"sequential", "either"}),
        ("stacked", {"stacked", "either"}),
        ("noise", set(cells)),
    ):
        monkeypatch.setitem(NUMERICS, path, NUMERICS[path] + 1)
        assert {name for name, c in cells.items() if Cell("a", c).key != before[name]} == moved
        monkeypatch.setitem(NUMERICS, path, NUMERICS[path] - 1)


@pytest.mark.parametrize(
    "name", ["digits-fedre", "digits-group", "digits-record", "digits-sga-ldp", "digits-compare"]
)
def test_a_configuration_of_every_method_has_a_key(name):
    assert Cell("x", load(name)).key == Cell("y", load(name)).key


@pytest.mark.parametrize(
    ("sum_", "former", "own"),
    [
        ("none", "record", {}),
        ("trusted", "record-sum", {"silos": 4}),
        ("secure", "record-secure", {"least_sites": 4}),
    ],
)
def test_a_key_holds_the_name_that_a_method_and_its_sum_had_at_first(sum_, former, own):
    record = {"examples": 10, "noise_multiplier": 1.0}
    setting = {"label": "x", "method": "record", "sum": sum_, "clip": 2.0}
    found = config(
        privacy={"method": "record", "sum": sum_, **record}, compare={"settings": [setting]}
    ).differing()
    assert found["privacy"] == {"method": former, "options": {**record, **own, "rounds": 2}}
    assert found["compare"]["settings"] == [
        {"label": "x", "match_sigma_of": "", "method": former, "clip": 2.0}
    ]


@pytest.mark.parametrize(
    ("former", "sum_"), [("record-sum", "trusted"), ("record-secure", "secure")]
)
def test_former_names_are_refused_with_what_they_are_called_now(former, sum_):
    from fedveil.engines.lifetime import read_policy
    from fedveil.methods import build

    setting = {"label": "x", "method": former}
    for refused in (
        lambda: config(privacy={"method": former, "examples": 10, "noise_multiplier": 1.0}),
        lambda: config(compare={"settings": [setting]}),
        lambda: build(former, examples=10, noise_multiplier=1.0),
        lambda: read_policy(Policy(methods=(former,))),
    ):
        with pytest.raises((FieldError, ConfigError), match=f'"record" with sum = "{sum_}"'):
            refused()


def test_the_digest_is_of_the_examples():
    first, second = (config(data__name="digits").data, config(data__clients=2).data)
    assert (
        deal.data_digest(first)
        == deal.data_digest(second)
        != deal.data_digest(load("digits-cia").data)[:6]
    )


def defaults():
    """Every default that a configuration can fall back on, by the section it stands in."""
    from fedveil.aggregation import AGGREGATORS
    from fedveil.data import SOURCES
    from fedveil.learning import MODELS
    from fedveil.methods import METHODS, parameters
    from fedveil_lab.config.sections import Budget, Data, Privacy

    found = {("local", k): o.default for k, o in options_of(LocalTraining).items()}
    for kind, registry in (("aggregator", AGGREGATORS), ("model", MODELS)):
        found |= {
            (kind, name, k): o.default
            for name, owner in registry.items()
            for k, o in options_of(owner).items()
        }
    found |= {
        ("data", n, k): o.default
        for n, info in SOURCES.items()
        for k, o in options_of(info.load).items()
    }
    for name in METHODS:
        for key, side in parameters(name).items():
            found["privacy", name, key] = options_of(side)[key].default
    for section in (Budget, Data, Privacy):
        for key, info in section.model_fields.items():
            found[section.__name__, key] = info.get_default(call_default_factory=True)
    return found


def test_a_default_does_not_change_unsaid():
    """Keys leave defaults out, so that a changed one must raise `NUMERICS`; a new option changes none of these."""
    pinned = json.loads(PINNED.read_text())
    assert pinned["numerics"] == NUMERICS, (
        "write defaults.json anew: python tests/fedveil_lab/grid/test_store.py"
    )
    now = {" ".join(key): repr(value) for key, value in defaults().items()}
    changed = {
        key: (value, now[key])
        for key, value in pinned["defaults"].items()
        if now.get(key, value) != value
    }
    assert not changed, f"raise fedveil.evidence.NUMERICS and write defaults.json anew: {changed}"


def test_every_cell_is_run_once_and_found_again(tmp_path):
    cells = [Cell("one", config(), (Largest(),)), Cell("two", config(seed=1))]
    store, said = Store(tmp_path), Said()
    assert store.find(cells[0]) is None
    found = store.run(cells, said)
    assert [label for label, _ in said.begun] == ["one", "two"]
    assert not found.failed
    outcome = found.outcomes[cells[0].key]
    assert outcome.series("largest") == [row["figures"]["largest"] for row in outcome.rows]
    assert outcome.summary.values["numerics"] == cells[0].numerics
    again, other = Said(), Store(tmp_path)
    assert (
        dict(other.run([Cell("renamed", config(), (Largest(),))], again).outcomes)[
            cells[0].key
        ].rows
        == outcome.rows
    )
    assert not again.begun
    assert other.state(cells[1]) == "done"
    assert other.state(Cell("one", config())) == "to run"  # without the probe it is another cell


def test_where_the_data_are_missing_the_only_run_of_them_is_found(tmp_path, monkeypatch):
    done = Store(tmp_path).run([Cell("one", config())])
    monkeypatch.setattr(cell, "data_digest", missing)
    [key] = done.outcomes
    lost = Cell("one", config())
    assert lost.key == key[:12] + "-??????"
    assert Store(tmp_path).find(lost).rows == done.outcomes[key].rows
    twin = Store(tmp_path).path(lost)
    twin.rename(twin.with_name(twin.name[:-6] + "abcdef"))
    (tmp_path / "cells" / twin.name).mkdir()
    with pytest.raises(FieldError, match="2 versions of it were run"):
        Store(tmp_path).find(Cell("one", config()))


def missing(spec):
    from fedveil.data import MissingDataError

    raise MissingDataError("data.name", spec.name, "is not here")


def test_an_interrupted_cell_goes_on_where_it_stopped(tmp_path):
    whole = Store(None).run([Cell("one", config(rounds=4))])

    class Stop(Said):
        def advance(self, row):
            if row["round"] == 2:
                raise KeyboardInterrupt

    cells = [Cell("one", config(rounds=4))]
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).run(cells, Stop())
    assert Store(tmp_path).state(cells[0]) == "begun"
    assert Store(tmp_path).rounds_done(cells[0]) == 2
    said = Said()
    found = Store(tmp_path).run(cells, said).outcomes[cells[0].key]
    assert said.begun == [("one", 2)]
    kept = whole.outcomes[cells[0].key]
    assert found.series("accuracy") == kept.series("accuracy")
    assert kept.folder is None


@pytest.mark.parametrize("executor", [None, partial(ThreadPoolExecutor, 2)])
def test_a_sigma_is_the_average_of_its_sources_runs(tmp_path, executor):
    metric = [Cell("m", config(privacy__method="metric", seed=s)) for s in (0, 1)]
    equal = Cell("e", config(privacy__derived_from="metric privacy"), sigma_of=tuple(metric))
    assert distinct([equal]) == [*metric, equal]
    found = Store(tmp_path).run([equal], executor=executor).outcomes
    wanted = sum(found[m.key].summary.noise("sigma") for m in metric) / 2
    assert found[equal.key].series("sigma") == pytest.approx([wanted, wanted])
    assert "heuristic" in found[equal.key].summary.values["guarantee"]


if __name__ == "__main__":
    pinned = {" ".join(key): repr(value) for key, value in sorted(defaults().items())}
    values = {"numerics": NUMERICS, "defaults": pinned}
    PINNED.write_text(json.dumps(values, indent=1) + "\n")
