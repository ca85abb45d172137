"""Sensitivity, specificity and calibration of a run's last model: pooled, by hospital, and on the test half.

All figures are measured without noise on people whom no promise covers, and are for the experimenter only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedveil.engines import Federation
from fedveil.learning import (
    ClientData,
    LossFunction,
    answers_of_clients,
    answers_to,
    choose_each,
    classified,
    predict,
)
from fedveil_lab.runs.prepare import Setup


def classified_of(setup: Setup, federation: Federation) -> dict[str, Any]:
    """Return the figures as plain values for the summary; empty if examples have no single class.

    ``pooled`` is over all clients, ``hospitals`` has each with its name, and ``test`` is the set's own test half.
    """
    dataset = setup.dealt.dataset
    if dataset.task != "classification":
        return {}
    classes, loss, learner = dataset.names(), federation.learner.local.loss, federation.learner
    clients = federation.clients
    found: dict[str, Any] = {}
    holders = [i for i, client in enumerate(clients) if client.held_out]
    if holders:
        chosen = _chosen(federation, clients, holders)
        held = answers_of_clients(
            learner.model, federation.layout, federation.models, clients, chosen
        )
        outputs, labels, persons, hospitals = [], [], [], []
        for i, (own, y) in held.items():
            outputs.append(own)
            labels.append(y)
            persons.append(clients[i].test_person)
            measured = _measured(own, y, classes, loss, clients[i].test_person)
            hospitals.append({"name": clients[i].name or str(i), **measured})
        pooled = _measured(torch.cat(outputs), torch.cat(labels), classes, loss, _joined(persons))
        if pooled:
            found["pooled"], found["hospitals"] = pooled, hospitals
    test_x, test_y = dataset.test_x, dataset.test_y
    if test_x is not None and test_y is not None and len(test_x) and len(federation.models) == 1:
        answers = predict(learner.model, federation.layout, federation.models[0], test_x)
        tested = _measured(answers, test_y, classes, loss, None)
        if tested:
            found["test"] = tested
    return found


def _chosen(
    federation: Federation, clients: Sequence[ClientData], holders: Sequence[int]
) -> list[int]:
    """Choose each client's hypothesis by its training rows; 0 for a client without held-out rows."""
    learner, own = federation.learner, [clients[i] for i in holders]
    chosen = [0] * len(clients)
    answers = choose_each(
        learner.model, federation.layout, federation.models, own, learner.local.loss
    )
    for i, answer in zip(holders, answers, strict=True):
        if isinstance(answer, int):
            chosen[i] = answer
    return chosen


def _joined(whose: Sequence[Tensor | None]) -> Tensor | None:
    """Join the persons of all clients; a person of several hospitals has the same number at each."""
    known = [own for own in whose if own is not None]
    if not known or len(known) < len(whose):
        return None
    return torch.cat(known)


def _measured(
    outputs: Tensor,
    y: Tensor,
    classes: tuple[str, ...],
    loss: str | LossFunction,
    persons: Tensor | None,
) -> dict[str, Any]:
    answers = answers_to(outputs, y, loss)
    if answers is None or answers.task != "classes" or not len(answers.labels):
        return {}
    probabilities = answers.probabilities
    if probabilities.shape[1] != len(classes):
        return {}
    if persons is None:
        own = None
    else:
        own = persons.numpy()[answers.example]
    if len(classes) == 2:
        positive = classes[1]
    else:
        positive = ""
    return classified(probabilities, answers.labels, classes, positive, own).to_dict()
