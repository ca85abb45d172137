"""Marks of a run's clients, for methods that protect regions: those of ``[data] region``, or those that the set brings.

Marks of ``[data] region`` are the same in every example, so they follow no content (`fedveil.learning.regions`).
"""

from collections.abc import Sequence
from dataclasses import replace

from fedveil.data import DataSet
from fedveil.errors import FieldError
from fedveil.learning import ClientData, marks_follow_content
from fedveil.methods import Method
from fedveil_lab.config.experiment import Config
from fedveil_lab.runs.deal import Dealt
from fedveil_lab.runs.region import coordinates_of, plain


def protects_regions(method: Method) -> bool:
    """Whether the unit of a method is the marked content of records."""
    return method.noisy is not None and method.noisy.noisy_steps.regions


def with_marks(config: Config, dealt: Dealt, method: Method) -> Dealt:
    """Return examples whose clients have the marks of a configuration; see `marked`."""
    return replace(dealt, clients=marked(config, dealt.dataset, dealt.clients, method))


def marked(
    config: Config, dataset: DataSet, clients: Sequence[ClientData], method: Method
) -> list[ClientData]:
    """Return clients with the marks of a configuration, if the method protects regions; else the clients as they are.

    Parameters
    ----------
    config : Config
        The run's configuration.
    dataset : DataSet
        The set of which the clients hold examples.
    clients : sequence of ClientData
        The clients of a run.
    method : Method
        The run's method.

    Raises
    ------
    FieldError
        Without marks; for marks that do not fit, or cover all of an example; for two sources of marks; for features in
        the place of examples; and for masks that follow what they cover, as far as the values show it. That last
        refusal follows the values. It is for a run in one process, where one person holds them all; a site of a
        deployed federation only warns its own operator (`fedveil.learning.regions.warn_of_followed_content`).
    """
    if not protects_regions(method):
        return list(clients)
    spec = config.data
    _require_coordinates(config)
    if spec.blanked is not None:
        accepted = (
            "leaves nothing for unit = 'region' to protect: leave it out, or train without noise"
        )
        raise FieldError("data.blanked", spec.blanked, accepted)
    if spec.pixel_noise:
        accepted = (
            "changes marked pixels before they are protected: leave it out beside unit = 'region'"
        )
        raise FieldError("data.pixel_noise", spec.pixel_noise, accepted)
    if dataset.regions is None:
        marks = coordinates_of(spec, dataset)
        if not spec.names_columns:
            marks = marks[0]  # all channels of a pixel
        return [replace(one, masks=marks.expand(one.examples, *marks.shape)) for one in clients]
    if spec.region is not None:
        accepted = f"and the marks of {dataset.name!r} are two answers: leave one out, or choose kinds by data.sensitive"
        raise FieldError("data.region", plain(spec), accepted)
    for one in clients:
        if one.examples and marks_follow_content(one):
            accepted = "are a threshold of the pixels that they cover: marks that follow content promise nothing. Take "
            raise FieldError(
                "data.sensitive",
                f"the masks of {one.name}",
                f"{accepted}marks that were made without looking at it",
            )
    return list(clients)


def _require_coordinates(config: Config) -> None:
    """Refuse features in the place of examples: each mixes marked and unmarked coordinates."""
    mixed = "makes features, which mix what is marked with what is not: leave it out beside unit = 'region'"
    if config.data.patches is not None:
        raise FieldError("data.patches", config.data.patches, mixed)
    if config.model.options.get("cached"):
        raise FieldError("model.cached", True, mixed)
