"""A study small enough to be read whole: studies/own-study.md says how one is added."""

from functools import partial

from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.claims import levelled, means, verdict_of

study = Study.of(__name__)


@study.measure("worst client")
def worst_client(outcomes, argument):
    """Accuracy of the worst client after the last round."""
    return Value(outcomes[0].rows[-1]["clients"]["accuracy"]["worst"])


@study.measure("length")
def length(outcomes, argument):
    """Length of the model after the last round."""
    return Value(outcomes[0].series("length")[-1])


@study.probe("length")
class Length:
    """Length of the model after every round."""

    name, figures = "length of the first model", ("length",)

    def __init__(self, config):
        """The scenario does not matter."""

    def __call__(self, seen):
        """Of the model that the round made."""
        return {"length": float(seen.models[0].norm())}


@study.adjust
def quiet(values, scale, flags):
    """A tenth of the noise, under the reading "quiet"."""
    if "quiet" in flags:
        values["privacy"]["noise_multiplier"] /= 10


@study.judge("above half")
def above_half(claim, evidence):
    """Every row without noise lies above .5."""
    for table, figure in claim.figures:
        for row in evidence.study.labels:
            found = means(evidence.at(table, row, "vanilla", figure))
            yield levelled(row, found, 0.5, partial(verdict_of, sign=1))
