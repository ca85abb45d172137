"""An absent value is said in one way: the field is missing, and no type of Python's stands in for it."""

import pytest
import torch

import fedveil as fv
from fedveil.accounting import Release
from fedveil.data import from_torch
from fedveil.errors import kind_of
from fedveil.learning import freeze

X, Y = torch.zeros(4, 2), torch.arange(4) % 2
ABSENT = {
    "a model": lambda: fv.Federation(model=None, clients=[(X, Y)]),
    "a client": lambda: fv.Federation(model=torch.nn.Linear(2, 2), clients=[None]),
    "a module of a layout": lambda: fv.Layout.from_module(None),
    "a rule": lambda: fv.GlobalDP(None, noise_multiplier=1.0),
    "what is frozen": lambda: freeze(None, but=("head",)),
    "a PyTorch data set": lambda: from_torch(None, classes=["a"], clients=["one"]),
    "what is released": lambda: Release("model", None),
    "a model of an estimator": lambda: fv.FederatedClassifier(model=3).fit(X.numpy(), Y.numpy()),
}


@pytest.mark.parametrize("do", ABSENT.values(), ids=ABSENT)
def test_an_absent_value_is_missing(do):
    with pytest.raises(fv.FieldError) as refused:
        do()
    assert refused.value.field
    assert "NoneType" not in str(refused.value)
    if refused.value.value is None:
        assert f"{refused.value.field} is missing: " in str(refused.value)


def test_a_value_of_another_kind_is_named_by_its_kind():
    assert (kind_of(None), kind_of(3), kind_of(dict)) == (None, "int", "dict")
    error = fv.FieldError("model", kind_of(None), "must be a module")
    assert (error.value, str(error)) == (None, "model is missing: must be a module")


def test_an_unknown_argument_that_was_given_none_is_not_called_missing():
    with pytest.raises(fv.FieldError) as refused:
        fv.Federation(modle=None, clients=[(X, Y)])
    assert (refused.value.field, refused.value.value) == ("modle", "None")
