"""What a physician asks of a run's last model: on what clients held out, pooled and by hospital; on the test half.

All of it is measured without noise on people whom no promise covers: the experimenter's own view.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedveil.engines import Federation
from fedveil.learning import ClientData, LossFunction, answers_of_clients, answers_to, choose_each, classified, predict
from fedveil_lab.runs.prepare import Setup


def classified_of(setup: Setup, federation: Federation) -> dict[str, Any]:
    """Plain values for the summary; nothing where the task names no class an example.

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
        held = answers_of_clients(learner.model, federation.layout, federation.models, clients, chosen)
        whose = [_persons(clients[i]) for i in held]
        every = [outputs for outputs, _ in held.values()], [y for _, y in held.values()]
        pooled = _measured(torch.cat(every[0]), torch.cat(every[1]), classes, loss, _joined(whose))
        if pooled:
            found["pooled"] = pooled
            found["hospitals"] = [
                {"name": clients[i].name or str(i), **_measured(*held[i], classes, loss, own)}
                for i, own in zip(held, whose, strict=True)
            ]
    if (
        dataset.test_x is not None
        and dataset.test_y is not None
        and len(federation.models) == 1
        and len(dataset.test_x)
    ):
        outputs = predict(learner.model, federation.layout, federation.models[0], dataset.test_x)
        if tested := _measured(outputs, dataset.test_y, classes, loss, None):
            found["test"] = tested
    return found


def _chosen(federation: Federation, clients: Sequence[ClientData], holders: Sequence[int]) -> list[int]:
    """Each client's hypothesis, chosen on its own training rows; 0 for one that holds nothing out."""
    learner, own = federation.learner, [clients[i] for i in holders]
    answers = choose_each(learner.model, federation.layout, federation.models, own, learner.local.loss)
    by_client = {i: answer for i, answer in zip(holders, answers, strict=True) if isinstance(answer, int)}
    return [by_client.get(i, 0) for i in range(len(clients))]


def _persons(client: ClientData) -> Tensor | None:
    return client.test_person


def _joined(whose: Sequence[Tensor | None]) -> Tensor | None:
    """Persons of all clients: one of several hospitals has one number at all of them."""
    known = [own for own in whose if own is not None]
    return torch.cat(known) if len(known) == len(whose) and known else None


def _measured(
    outputs: Tensor, y: Tensor, classes: tuple[str, ...], loss: str | LossFunction, persons: Tensor | None
) -> dict[str, Any]:
    answers = answers_to(outputs, y, loss)
    if answers is None or answers.task != "classes" or not len(answers.labels):
        return {}
    probabilities = answers.probabilities
    if probabilities.shape[1] != len(classes):
        return {}
    own = None if persons is None else persons.numpy()[answers.example]
    return classified(probabilities, answers.labels, classes, classes[1] if len(classes) == 2 else "", own).to_dict()
