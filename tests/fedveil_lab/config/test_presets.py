"""What FedVeil brings to be tried out gives no warning, so that one means something; and each fits the run it is of."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.data import MissingDataError
from fedveil.engines.assembly import resolve_method
from fedveil.engines.warning import Warnings
from fedveil_lab.config import load, presets
from fedveil_lab.runs import run

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

LAYOUT = fv.Layout.from_module(nn.Linear(20, 2))

# Presets that say something about themselves, on purpose: how their lines begin, and why that stays.
SKEWED = "clients see few classes, as in the paper"
SAY = {
    "digits-cia": (("1 of 3 clients hold no example of some class",), SKEWED),
    "digits-fedre": (("no public example shows",), "sixteen public images do not show ten classes"),
    "digits-group": (("15 of 20 clients hold no example of some class",), SKEWED),
    "digits-sga-ldp": (
        ("1 of 30", "27 of 30"),
        SKEWED,
    ),
    "hospitals-digits": (("200 of 200 clients hold no example of some class",), SKEWED),
}


LONG = {"digits-fedre", "record-blood-cnn"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
    for name in sorted(presets())
]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_says_nothing_but_what_is_listed(name, tmp_path, monkeypatch):
    for variable in (
        "FEDVEIL_DATA",
        "FEDVEIL_CACHE",
    ):  # what is packaged alone, without decoded copies of other data
        monkeypatch.setenv(variable, str(tmp_path))
    config = load(name, ["rounds=2"])
    if config.privacy.options.get("rounds"):
        config = load(name, ["rounds=2", "privacy.rounds=2"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            summary = run(config, tmp_path / "run")
        except MissingDataError:
            pytest.skip("needs data that are not packaged")
    said, (begun, _) = summary.values["data"]["warnings"], SAY.get(name, ((), ""))
    assert all(line.startswith(begun) for line in said), said
    assert all(any(line.startswith(start) for line in said) for start in begun), said


def test_presets_that_speak_are_presets():
    assert set(SAY) <= set(presets())


@pytest.mark.parametrize("name", ["W1", "W2"])
def test_the_benchmarks_give_no_warning(name):
    from benchmarks.engines.ours import FedVeil
    from benchmarks.workloads import WORKLOADS

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        FedVeil(WORKLOADS[name]()).rounds(1)


def test_an_audit_does_not_warn_of_the_worlds_that_it_makes():
    """In one of them the target has no example."""
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    clients = [(x[i::3], y[i::3]) for i in range(3)]

    def make(clients, method, seed):
        return fv.Federation(
            model=lambda: nn.Linear(4, 2), clients=clients, method=method, seed=seed
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fv.audit(
            make, clients, fv.GlobalDP(noise_multiplier=0.1, clip=0.05), rounds=1, replicates=4
        )


# ---- each line beside the settings in which it may appear

PERSON = {"unit": "person", "people": 9, "records_per_person": 2}
METHODS = {
    "client": fv.GlobalDP(noise_multiplier=1.0, clip=1.0),
    "local": fv.SGALDP(epsilon_min=1.0, epsilon_max=1.0, clip=1.0),
    "record": fv.methods.build("record", examples=9, epsilon=8, rounds=2, clip=1.0),
    "record, summed": fv.methods.build(
        "record", sum="trusted", silos=4, examples=9, epsilon=8, rounds=2, clip=1.0
    ),
    "record, secure": fv.methods.build(
        "record", sum="secure", least_sites=3, examples=9, epsilon=8, rounds=2, clip=1
    ),
    "person": fv.methods.build("record", epsilon=8, rounds=2, clip=1.0, **PERSON),
    "person, summed": fv.methods.build(
        "record", sum="trusted", silos=4, epsilon=8, rounds=2, clip=1.0, **PERSON
    ),
}


def said_of(method, ratio=40.0, clip=1.0, longest=0.0, layers=False):
    warned = Warnings(resolve_method(method), LAYOUT, lambda line: None)
    warned.noise(ratio, clip, longest, layers)
    return warned.said


@pytest.mark.parametrize("name", METHODS)
def test_what_helps_against_noise_is_not_turned_on_already(name):
    line = said_of(METHODS[name])["noise"].partition("What helps:")[2]
    summed, inside = name.endswith(("summed", "secure")), name.startswith(("record", "person"))
    assert ("record level" in line) == (not inside)
    assert ("a secure sum" in line) == (inside and not summed)
    assert ("persons a client" in line) == name.startswith("person")
    assert ("examples a client" in line) == name.startswith("record")
    assert ("a round's mean" in said_of(METHODS[name])["noise"]) == (not inside)


def test_a_clip_is_named_as_it_was_written():
    assert "clip = 8 " in said_of(METHODS["local"], 2.0, 8.0, 1.0)["clip"]
    layered = said_of(METHODS["local"], 2.0, 8.0, 1.0, layers=True)["clip"]
    assert "clip = 8" not in layered
    assert "layers" in layered


def test_a_large_delta_is_compared_with_the_number_of_what_is_protected(tmp_path):
    planned = ["rounds=1", "privacy.rounds=1", "privacy.delta=0.09", "privacy.budget.delta=0.09"]
    for name, unit in (
        ("digits-person", "person"),
        ("digits-record", "record"),
        ("digits-sga-ldp", "client"),
    ):
        settings = planned if unit != "client" else ["rounds=1", "privacy.budget.delta=0.09"]
        said = run(load(name, settings), tmp_path / name).values["data"]["warnings"]
        assert [line for line in said if line.startswith("delta") and f" {unit}s whole" in line], (
            said
        )
