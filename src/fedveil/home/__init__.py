"""Use of a released model: description, loading, predictions, and export with a model card."""

from typing import TYPE_CHECKING

from fedveil.registry import lazy

_OFFERED = {  # by module; a whole module stands under its package
    "fedveil.home.description": "DESCRIPTION Description describe promise_values",
    "fedveil.home.exporting": "export",
    "fedveil.home.reading": "labelled_examples",
    "fedveil.home.released": "Answer ReleasedModel description_in hypotheses_in load weights_of",
    "fedveil.home.threshold": "PRIVATE_ROWS Threshold choose_threshold",
}

if TYPE_CHECKING:
    from fedveil.home.description import DESCRIPTION as DESCRIPTION
    from fedveil.home.description import Description as Description
    from fedveil.home.description import describe as describe
    from fedveil.home.description import promise_values as promise_values
    from fedveil.home.exporting import export as export
    from fedveil.home.reading import labelled_examples as labelled_examples
    from fedveil.home.released import Answer as Answer
    from fedveil.home.released import ReleasedModel as ReleasedModel
    from fedveil.home.released import description_in as description_in
    from fedveil.home.released import hypotheses_in as hypotheses_in
    from fedveil.home.released import load as load
    from fedveil.home.released import weights_of as weights_of
    from fedveil.home.threshold import PRIVATE_ROWS as PRIVATE_ROWS
    from fedveil.home.threshold import Threshold as Threshold
    from fedveil.home.threshold import choose_threshold as choose_threshold
else:
    __getattr__, __dir__, __all__ = lazy(__name__, _OFFERED)
