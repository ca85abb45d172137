"""What a configuration promises before anything is run."""

from __future__ import annotations

from statistics import median

import torch

from fedveil.accounting import Choice, Guarantee, Release, advise, total
from fedveil.config import Config
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Broadcast, Method, PublicFacts
from fedveil.methods.facts import Refusal, ServerFacts
from fedveil.runs.prepare import prepare


def promised(config: Config) -> Guarantee:
    """The total of a run in which every planned client answers in every round; of one client, where clients add noise.

    A client's cost is what it quotes; the server's, what it states for a round of updates that are zero.

    Raises
    ------
    FieldError
        If the method refuses such a round, or the number of clients is not in the file.
    """
    method, n = config.privacy.build(config.aggregator), config.clients_per_round or config.data.planned
    if n is None:
        raise FieldError("clients_per_round", None, "how many clients a round has is not known before the data: set it")
    first = _first(config, method, n)
    rounds = config.rounds if first.proven else 1
    return total([first] * rounds)


def choices(
    config: Config, epsilon: float, examples: int | None = None, dimension: int | None = None
) -> tuple[Choice, ...]:
    """What else reaches a total epsilon for this federation; data are loaded where size and dimension are not given."""
    if examples is None or dimension is None:
        setup = prepare(config)
        examples = examples or int(median(c.examples for c in setup.arguments["clients"]))
        dimension = dimension or setup.learner.layout.size
    n = config.clients_per_round or config.data.planned or 1
    delta = config.privacy.budget.delta
    return advise(clients=n, examples=examples, dimension=dimension, rounds=config.rounds, epsilon=epsilon, delta=delta)


def _first(config: Config, method: Method, n: int) -> Guarantee:
    layout = Layout.from_shapes({"w": (1,)})
    k = method.server.hypotheses
    public = PublicFacts(round=1, rounds=config.rounds, cohort=n, dimension=1, layer_scores=(1.0,))
    opened = Broadcast(models=torch.zeros(k, 1), public=public)
    if config.privacy.trust != "central":
        quoted = method.client.quote(opened, method.client.init())
        if isinstance(quoted, Refusal):
            raise FieldError("privacy", config.privacy.method, quoted.reason)
        return quoted.guarantee
    facts = ServerFacts(broadcast=opened, layout=layout, partitions=tuple(range(n)), public_update=torch.zeros(1))
    replies = [(Release("model", torch.zeros(1)), Release("count", torch.tensor(1.0)))] * n
    state = method.server.init(1, torch.float32)
    return method.server.combine(replies, facts, state, ReproducibleSource(0)).spend.guarantee
