"""Every public name, called with values of any kind: a refusal that names the field, never an error from inside."""

import inspect
import re
import traceback

import pytest
import torch
from pydantic import BaseModel
from torch import nn

import fedveil as fv
from fedveil_lab.runs import Summary

X, Y = torch.rand(8, 3), torch.tensor([0, 1] * 4)
MODEL = nn.Linear(3, 2)
LAYOUT = fv.Layout.from_module(MODEL)
JUNK = [None, "text", 3, -1.5, True, float("nan"), b"x", (1,), [1, 2], {"a": 1}, object(), object]
JUNK += [lambda *a, **k: None, nn.Linear, fv.FedAvg(), fv.GlobalDP, fv.LocalTraining(), LAYOUT]
WHOLE = {
    fv.Federation: {"model": MODEL, "clients": [(X, Y)] * 3},
    fv.Learner: {"model": MODEL, "layout": LAYOUT, "local": fv.LocalTraining()},
    fv.ServerParty: {"method": fv.FedAvg(), "layout": LAYOUT},
    fv.ClientData: {"x": X, "y": Y},
    fv.Ledger: {"run": "r", "party": "0"},
}
EASY = (BaseException, BaseModel)  # made by others' rules


def called_names():
    """Classes and functions of `fv`, and the class methods of its classes."""
    for name in sorted(fv.__all__):
        thing = getattr(fv, name)
        if inspect.ismodule(thing) or (isinstance(thing, type) and issubclass(thing, EASY)):
            continue
        if inspect.isabstract(thing) or getattr(thing, "_is_protocol", False):
            continue
        yield name, thing
        own = vars(thing).items() if isinstance(thing, type) else ()
        yield from (
            (f"{name}.{n}", getattr(thing, n))
            for n, m in own
            if isinstance(m, classmethod) and n[0] != "_"
        )


NAMES = dict(called_names())


def refuses(call, *arguments, **named):
    """Call; an error of Python itself may say that an argument is missing, or one too many."""
    try:
        call(*arguments, **named)
    except ValueError:
        return ""
    except Exception as error:
        own = isinstance(error, TypeError) and re.search(
            r"\(\) (missing|takes|got) .*argument", str(error)
        )
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (
            ""
            if own
            else f"{error!r} at {place.filename}:{place.lineno} of {arguments} {named}"[-300:]
        )
    return ""


def parameters_of(thing):
    known = inspect.signature(thing).parameters.values()
    return [
        p for p in known if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name[0] != "_"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_values_of_any_kind_are_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing, parameters = NAMES[name], parameters_of(NAMES[name])
    whole = WHOLE.get(thing)
    needed = [p.name for p in parameters if p.default is p.empty]
    crashes = []
    for junk in JUNK:
        crashes += [refuses(thing, junk), refuses(thing, junk, junk)]
        for parameter in parameters:
            base = dict.fromkeys(needed, junk) if whole is None else whole
            crashes.append(refuses(thing, **{**base, parameter.name: junk}))
    assert not [*filter(None, crashes)]


def test_a_call_without_names_says_which_there_are():
    with pytest.raises(fv.FieldError) as refused:
        fv.RecordDP(fv.FedAvg())
    assert refused.value.field == "examples"
    with pytest.raises(fv.FieldError, match="model="):
        fv.Federation(MODEL, [(X, Y)])
    with pytest.raises(fv.FieldError, match="clients"):
        fv.Federation(model=MODEL)


def test_a_cohort_of_nobody_is_not_everybody():
    with pytest.raises(fv.FieldError, match="clients_per_round"):
        fv.Federation(model=MODEL, clients=[(X, Y)] * 3, clients_per_round=0)


@pytest.mark.parametrize("folder", ["text", None, 3, ["a"]])
def test_a_summary_of_anything_is_refused_by_name(folder):
    with pytest.raises(fv.FieldError):
        Summary.read(folder)
