"""Shared by the tests of the core: small layouts and replies, odd sources, statistical checks."""

import numpy as np
import torch
from scipy import stats

from fedveil.accounting import Ledger, Release
from fedveil.engines import ServerParty
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Broadcast, ClientFacts, Method, PublicFacts, ServerFacts, TrustedServer

PLAUSIBLE, IMPOSSIBLE = (
    1e-4,
    1e-9,
)  # p-values: of a right scale (seeds are fixed, so no test flickers), of a wrong one


def variance_p(noise, sigma):
    """Two-sided p-value of "independent normals of deviation sigma" from the sum of squares (chi-squared)."""
    values = np.asarray(noise, dtype=np.float64).ravel()
    statistic = float(np.sum((values / sigma) ** 2))
    return 2 * min(stats.chi2.cdf(statistic, len(values)), stats.chi2.sf(statistic, len(values)))


def assert_deviation(noise, sigma):
    """The noise has this deviation, and the test would have noticed half of it and twice it."""
    assert variance_p(noise, sigma) > PLAUSIBLE
    assert variance_p(noise, sigma / 2) < IMPOSSIBLE
    assert variance_p(noise, sigma * 2) < IMPOSSIBLE


def radius_p(noise, epsilon):
    """Two-sided p-value of "n-dimensional Laplace with this epsilon" from one radius (Gamma)."""
    values = np.asarray(noise, dtype=np.float64).ravel()
    law = stats.gamma(len(values), scale=1 / epsilon)
    radius = float(np.linalg.norm(values))
    return 2 * min(law.cdf(radius), law.sf(radius))


def assert_laplace(noise, epsilon):
    """The radius fits this epsilon, and the test would have noticed half and twice the noise."""
    assert radius_p(noise, epsilon) > PLAUSIBLE
    assert radius_p(noise, epsilon / 2) < IMPOSSIBLE
    assert radius_p(noise, epsilon * 2) < IMPOSSIBLE


class ScaledSource(ReproducibleSource):
    """A broken (or, with factor 0, silent) source: its normals are scaled."""

    def __init__(self, seed, factor, *, _key=()):
        super().__init__(seed, _key=_key)
        self.factor = factor

    def child(self, *key):
        return ScaledSource(self._seed, self.factor, _key=(*self._key, *key))

    def normal(self, size, dtype=torch.float64):
        return super().normal(size, dtype) * self.factor


class Deployed(ReproducibleSource):
    """A source that parties take for one nobody can repeat, so that tests can hold a deployment's noise fixed."""

    kind, deployable = "secure", True

    def child(self, *key):
        return Deployed(self._seed, _key=(*self._key, *key))


def silent():
    """A source whose Gaussian noise is zero: what a mechanism would have released without noise."""
    return ScaledSource(0, 0.0)


def flat(d):
    """A layout of one array of d coordinates."""
    return Layout.from_shapes({"w": (d,)}, torch.float64)


def public(round_=1, *, rounds=10, cohort=1, d=1, scores=None):
    return PublicFacts(round=round_, rounds=rounds, cohort=cohort, dimension=d, layer_scores=scores)


def reply(model, count=None):
    """What a client sends: a model, and perhaps a count."""
    model = (
        torch.as_tensor(model, dtype=torch.float64)
        if not isinstance(model, torch.Tensor)
        else model
    )
    sent = (Release("model", model),)
    return sent if count is None else (*sent, Release("count", torch.tensor(float(count))))


def server_facts(theta, n, *, cohort=None, layout=None, scores=None, round_=1):
    """Facts of a server that got n replies; theta [d] or [k, d]."""
    models = (
        theta if isinstance(theta, torch.Tensor) else torch.as_tensor(theta, dtype=torch.float64)
    )
    models = models[None] if models.dim() == 1 else models
    broadcast = broadcast_of(models, round_, cohort=cohort or n)
    layout = layout or flat(models.shape[1])
    return ServerFacts(
        broadcast=broadcast, layout=layout, partitions=tuple(range(n)), public_scores=scores
    )


def broadcast_of(models, round_=1, *, rounds=10, cohort=1, scores=None):
    """What opens a round; models [d] or [k, d], `scores` the public ones."""
    models = models[None] if models.dim() == 1 else models
    facts = public(round_, rounds=rounds, cohort=cohort, d=models.shape[1], scores=scores)
    return Broadcast(models=models, public=facts)


def client_facts(
    start, *, round_=1, rounds=10, layout=None, chosen=0, scores=None, public_scores=None
):
    """Facts of a client that starts from `start` [d] or [k, d]."""
    broadcast = broadcast_of(start, round_, rounds=rounds, scores=public_scores)
    layout = layout or flat(broadcast.public.dimension)
    return ClientFacts(broadcast=broadcast, layout=layout, chosen=chosen, layer_scores=scores)


def combine(
    side,
    theta,
    updates,
    *,
    counts=None,
    cohort=None,
    layout=None,
    state=None,
    source=None,
    scores=None,
):
    """Run a server side on clients that moved theta by `updates` [n, d]."""
    theta = torch.as_tensor(theta, dtype=torch.float64)
    updates = torch.as_tensor(updates, dtype=torch.float64)
    counts = [None] * len(updates) if counts is None else counts
    replies = [reply(theta + u, c) for u, c in zip(updates, counts, strict=True)]
    state = side.init(theta.numel(), torch.float64) if state is None else state
    facts = server_facts(theta, len(updates), cohort=cohort, layout=layout, scores=scores)
    return side.combine(replies, facts, state, source or silent())


def server_party(side, d, *, source=None, client=None, **options):
    """A server party of a central method over d coordinates."""
    method = Method("test", client or TrustedServer(), side)
    return ServerParty(
        method, flat(d), Ledger("run", "server"), source or ReproducibleSource(0), **options
    )
