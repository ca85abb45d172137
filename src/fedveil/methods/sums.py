"""Summation of the silos' noisy steps at record and person level: none, a trusted sum, or a secure sum.

`RecordPromise` has the noise and the promise. The classes here make a silo's releases, and sum them on the server.

In the secure sum a single share is a random number, and no receiver of shares is trusted. A site's step is an integer
sum of clipped contributions on a grid. The site adds its share of the noise, and masks. The masks cancel only in the
sum over all sites of one question (`fedveil.secure`, docs/secure-sum.md). The server applies learning rate and
momentum.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import torch

from fedveil.accounting import Release, model_of, nothing
from fedveil.aggregation import WeightedMean
from fedveil.checks import SumRate
from fedveil.errors import FieldError, NoReplyError, ReplyError, kind_of
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.facts import (
    Broadcast,
    ClientFacts,
    Combined,
    NoisySteps,
    PublicFacts,
    Releases,
    ServerFacts,
)
from fedveil.methods.plain import Plain
from fedveil.methods.record_promise import RecordPromise
from fedveil.methods.replies import figures_of
from fedveil.secure import FEWEST, SumContext, SumTerms, share, unmasked

TERMS = (
    "clip",
    "deviation",
    "denominator",
    "rate",
    "images",
    "silos_per_person",
    "silos",
    "tolerated",
    "lr",
)


@dataclass(frozen=True)
class NoSum:
    """No sum: each silo adds all the noise of its own promise. Any number of steps and any rule are possible.

    Attributes
    ----------
    promise : RecordPromise
        Promise of a silo.
    denominator : float
        Divisor of a silo's step.
    units : int
        Largest number of examples (persons) of a site; only a secure sum needs it.
    """

    promise: RecordPromise
    denominator: float
    units: int

    server: ClassVar[type[Plain]] = Plain

    def check(self) -> None:
        """Refuse parameters with which the sum cannot be made."""

    def steps(self, noisy: NoisySteps) -> NoisySteps:
        """Return the noisy steps of the silo's trainer for this sum."""
        return noisy

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse a round with a number of clients for which the sum cannot be made."""

    def refusal(self, public: PublicFacts) -> str:
        """Return the reason why a silo declines a round; "" if it takes part."""
        return ""

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """Return the question of a broadcast to the sites of a secure sum; None for other sums."""
        return None

    def agreed(self, dimension: int) -> str:
        """Return the terms that the sites of a secure sum have to agree on; "" for other sums."""
        return ""

    def leaving(
        self,
        releases: Releases,
        facts: ClientFacts,
        noisy: NoisySteps,
    ) -> Releases:
        """Return a silo's releases: the model, if it was trained with this method's noise, and the shared parameters."""
        model = model_of(releases)
        if model is None:
            return ()
        if facts.noised is None or replace(facts.noised, lr=0.0) != noisy:
            accepted = (
                "the model lacks this method's noise: train it with fedveil.learning.PrivateTrainer"
            )
            raise FieldError("noised", facts.noised, accepted)
        return (Release("model", model), *self.terms(facts.noised))

    def terms(self, noised: NoisySteps) -> Releases:
        """Return the public parameters that all silos of a sum must share."""
        return ()


@dataclass(frozen=True)
class TrustedSum(Plain):
    """Server side of ``sum = "trusted"``: the mean of all shares, and then any optimiser.

    The server leaves out a share that was made with other parameters (`RecordDP.require_terms`). Rules that are not
    linear in the shares are refused. A silo could subtract its own share from the sum. If the remaining noise would be
    too small, nothing is released.
    """

    def __post_init__(self) -> None:
        """Refuse rules that need single shares instead of their sum."""
        super().__post_init__()
        rule = self.aggregator
        if not isinstance(rule, WeightedMean) or rule.weighting != "uniform":
            accepted = 'the promise is about the sum of all shares: take a mean with weighting="uniform", as FedAvgM'
            raise FieldError("aggregator", kind_of(rule), accepted)

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: Any,
        source: Source,
    ) -> Combined:
        """Check that enough shares for the promised noise arrived, and average them."""
        given = [_terms_of(releases) for releases in replies]
        terms = max(given, key=given.count)
        replies = [
            reply for reply, its_terms in zip(replies, given, strict=True) if its_terms == terms
        ]
        if set(terms) != set(TERMS):
            raise ReplyError("shares of one sum name the terms on which they are made")
        silos, tolerated = int(terms["silos"]), int(terms["tolerated"])
        gone = silos - len(replies)
        if gone > tolerated - 1:
            raise NoReplyError(
                f"{gone} of {silos} silos dropped out or have other terms ({', '.join(TERMS)}) than most, and the "
                f"shares tolerate {tolerated} together with one curious silo: nothing is released. Raise tolerated, "
                "or run without that silo"
            )
        return super().combine(replies, facts, state, source)


def _terms_of(releases: Releases) -> dict[str, float]:
    """Return the parameters with which a share was made."""
    figures = figures_of(releases)
    return {name: figures[name] for name in figures if name in TERMS}


class TrustedShares(NoSum):
    """Silo's part of a trusted sum: it adds a share of the noise, with deviation z C / sqrt(n - t).

    Here z is the noise multiplier, C the clip, n the number of silos, and t the number that may drop out or lie. So any
    n - t shares together have the noise of one sum.
    """

    server: ClassVar[type[Plain]] = TrustedSum

    def steps(self, noisy: NoisySteps) -> NoisySteps:
        return replace(noisy, summed=True)

    def require_sites(self, sites: int, field: str) -> None:
        silos = self.promise.silos
        if sites != silos:
            raise FieldError(
                field, sites, f"must be silos = {silos}, for which shares are sized: change one"
            )

    def refusal(self, public: PublicFacts) -> str:
        if public.cohort == self.promise.silos:
            return ""
        return f"shares are sized for {self.promise.silos} silos, the server plans {public.cohort}"

    def terms(self, noised: NoisySteps) -> Releases:
        known = {**vars(noised), **vars(self.promise)}
        terms = []
        for name in TERMS:
            value = torch.tensor(float(known[name]), dtype=torch.float64)
            terms.append(Release("metric", value, name))
        return tuple(terms)


@dataclass(frozen=True)
class SecureSum(TrustedSum):
    """Server side of ``sum = "secure"``: sum all shares of a roster, and make one step of any optimiser from the mean.

    Parameters
    ----------
    lr : float, optional
        Learning rate of the server's step; by default that of local training, if the engine knows it.
    """

    lr: SumRate | None = None

    outside_promise: ClassVar[frozenset[str]] = frozenset({"lr"})

    def check_reply(self, releases: Releases, dimension: int) -> None:
        """Refuse a reply that is not a share.

        Raises
        ------
        ReplyError
            If the reply is not one share, int64 [d].
        """
        kinds = [release.kind for release in releases]
        if kinds != ["share"]:
            raise ReplyError(f"a reply to a secure sum is one share, not {kinds}")
        value = releases[0].value
        if value.dtype != torch.int64 or tuple(value.shape) != (dimension,):
            raise ReplyError(
                f"a share is int64 [{dimension}], not {value.dtype} {tuple(value.shape)}"
            )

    def mean(self, replies: Sequence[Releases], context: SumContext) -> torch.Tensor:
        """Return the noised mean gradient [d] of a roster, in float64."""
        shares = [release.value for release in chain.from_iterable(replies)]
        total = unmasked(shares, context)
        return total / (context.terms.denominator * len(context.roster))

    def rate(self) -> float:
        """Return the learning rate of the step.

        Raises
        ------
        FieldError
            If there is none.
        """
        if self.lr is None:
            accepted = "is needed: the step is the server's; give the method its parameter, lr=0.5"
            raise FieldError("lr", None, accepted)
        return self.lr

    def step(
        self,
        facts: ServerFacts,
        gradient: torch.Tensor,
        state: Any,
        source: Source,
    ) -> Combined:
        """Move the model by one step of the rule against a gradient [d]."""
        rate = self.rate()
        theta = facts.broadcast.models[0]
        rule = self.aggregator.for_round(state, source, facts.public_update)
        model, state = rule.step(theta, (-rate * gradient).to(theta.dtype), state)
        sites = len(facts.broadcast.public.roster)
        return Combined(model[None], nothing(), state, {"clients": float(sites)})

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: Any,
        source: Source,
    ) -> Combined:
        """Sum all shares of the roster, and make one step.

        Raises
        ------
        NoReplyError
            If a site of the roster is missing: the other shares are then random numbers.
        """
        context = facts.question
        if context is None:
            raise FieldError("question", None, "it is needed: the shares answer one")
        if len(replies) != len(context.roster):
            missing = len(context.roster) - len(replies)
            raise NoReplyError(
                f"{missing} of {len(context.roster)} sites are missing: ask again, without them"
            )
        return self.step(facts, self.mean(replies, context), state, source)


class SecureShares(NoSum):
    """Site's part of a secure sum: each of m sites adds noise of deviation z C / sqrt(m - c), and masks.

    Of a roster's m sites at least m - c are honest.
    """

    server: ClassVar[type[Plain]] = SecureSum

    def check(self) -> None:
        self._terms(1)
        most = self.promise.most or 0
        if most > self.units:
            raise FieldError("units", self.units, f"must be at least the {most} that are promised")

    def agreed(self, dimension: int) -> str:
        return self._terms(dimension).text

    def _terms(self, dimension: int) -> SumTerms:
        promise = self.promise
        return SumTerms(
            unit="person" if promise.unit == "person" else "record",
            relation=promise.relation,
            clip=promise.clip,
            noise_multiplier=promise.multiplier * promise.together,
            denominator=self.denominator,
            rate=promise.rate,
            units=self.units,
            dimension=dimension,
            least_sites=promise.least_sites,
            colluding=promise.colluding,
            silos_per_person=promise.silos_per_person,
        )

    def steps(self, noisy: NoisySteps) -> NoisySteps:
        """Return steps that sum on the grid without noise."""
        return replace(noisy, grid=self._terms(1).grid, units=self.units)

    def require_sites(self, sites: int, field: str) -> None:
        if sites < FEWEST:
            accepted = f'must be at least {FEWEST} for a secure sum: raise it, or set sum = "trusted" or "none"'
            raise FieldError(field, sites, accepted)
        least = self.promise.least_sites
        if sites < least:
            accepted = f"must be at least least_sites = {least}: raise it, or set least_sites to {sites} at the most"
            raise FieldError(field, sites, accepted)

    def refusal(self, public: PublicFacts) -> str:
        sites, least = len(public.roster), self.promise.least_sites
        if sites >= least:
            return ""
        return f"a sum of {sites} sites; this one answers {least} or more"

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext:
        """Return the question of a broadcast to the sites, with this client's own parameters."""
        public = broadcast.public
        planned = f"{broadcast.opened} {public.rounds} {public.cohort}"
        shapes = repr(
            [(block.name, tuple(block.shape), str(block.dtype)) for block in layout.blocks]
        )
        return SumContext(
            run=public.run,
            round=public.round,
            attempt=public.attempt,
            roster=public.roster,
            broadcast=hashlib.sha256(planned.encode()).hexdigest(),
            layout=hashlib.sha256(shapes.encode()).hexdigest(),
            terms=self._terms(layout.size),
        )

    def leaving(
        self,
        releases: Releases,
        facts: ClientFacts,
        noisy: NoisySteps,
    ) -> Releases:
        """Add noise and masks to the step's sum; only this share leaves the site."""
        sums = [release.value for release in releases if release.kind == "sum"]
        if facts.site is None:
            raise FieldError(
                "site",
                None,
                "it is needed: a site has a key of its own, and pins those of the others",
            )
        if facts.failed:
            sums = [torch.zeros(facts.layout.size, dtype=torch.int64)]
        if len(sums) != 1:
            return ()
        if not facts.failed and facts.noised != noisy:
            accepted = "the sum was not made on this method's grid: train with fedveil.learning.PrivateTrainer"
            raise FieldError("noised", facts.noised, accepted)
        context = self.question(facts.broadcast, facts.layout)
        masked = share(sums[0], facts.site.key, context, facts.site.peers)
        return (Release("share", masked),)
