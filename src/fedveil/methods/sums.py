"""What becomes of the silos' noisy steps at record and person level: nothing more, a trusted sum, or a secure one.

`RecordDP` clips, counts and quotes; these say whose noise counts, what leaves a silo, and who adds it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedveil.accounting import Release, Trust, model_of
from fedveil.accounting.conditions import SUM_IS_TRUSTED, whole_noise
from fedveil.aggregation import WeightedMean
from fedveil.errors import FieldError, NoReplyError, ReplyError
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.facts import Broadcast, ClientFacts, Combined, NoisySteps, PublicFacts, Releases, ServerFacts
from fedveil.methods.plain import Plain
from fedveil.methods.record_terms import RecordTerms
from fedveil.methods.replies import figures_of
from fedveil.secure import SumContext

TERMS = ("clip", "deviation", "denominator", "rate", "images", "silos_per_person", "silos", "tolerated", "lr")


@dataclass(frozen=True)
class NoSum:
    """Each silo adds all the noise that its own promise needs: local steps are free, and any rule may combine."""

    side: RecordTerms

    trust: ClassVar[Trust] = "local"
    server: ClassVar[type[Plain]] = Plain

    def check(self) -> None:
        """Refuse what this sum cannot promise."""
        if self.trust != "local" and self.side.steps != 1:
            accepted = 'must be 1: every noisy step is summed before the next; or set sum = "none"'
            raise FieldError("steps", self.side.steps, accepted)

    @property
    def adding(self) -> int:
        """Silos whose noise makes up what is promised."""
        return 1

    @property
    def conditions(self) -> tuple[str, ...]:
        """What has to hold beside the conditions of every silo."""
        return ()

    def steps(self, noisy: NoisySteps) -> NoisySteps:
        """What the silo's trainer is to do."""
        return noisy

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse a number of clients in a round that makes no such sum."""

    def refusal(self, public: PublicFacts) -> str:
        """Why a silo declines such a round, or ""."""
        return ""

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """What the sites of a secure sum are asked; None where there is none."""
        return None

    def agreed(self, dimension: int) -> str:
        """What the sites of a secure sum have to agree on; "" where there is none."""
        return ""

    def leaving(self, releases: Releases, facts: ClientFacts, noisy: NoisySteps) -> Releases:
        """What leaves the silo: a model that was trained with this method's noise, and nothing else."""
        model = model_of(releases)
        if model is None:
            return ()
        if facts.noised is None or replace(facts.noised, lr=0.0) != noisy:
            accepted = "the model lacks this method's noise: train it with fedveil.learning.PrivateTrainer"
            raise FieldError("noised", facts.noised, accepted)
        return (Release("model", model), *self.terms(facts.noised))

    def terms(self, noised: NoisySteps) -> Releases:
        """What all silos of a sum have to agree on, all of it public."""
        return ()


@dataclass(frozen=True)
class TrustedSum(Plain):
    """Server side of ``sum = "trusted"``: the mean of all shares, and then any optimiser.

    The server leaves out a share that was made on other terms (`RecordDP.require_terms`). Nothing is released if a rule
    is not linear in the shares, or if so many silos are missing that one curious silo more would leave too little
    noise.
    """

    def __post_init__(self) -> None:
        """Refuse rules that read single shares."""
        super().__post_init__()
        rule = self.aggregator
        if not isinstance(rule, WeightedMean) or rule.weighting != "uniform":
            accepted = 'the promise is about the sum of all shares: take a mean with weighting="uniform", as FedAvgM'
            raise FieldError("aggregator", type(rule).__name__, accepted)

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Check that the noise is whole, and average the shares."""
        given = [{k: v for k, v in figures_of(releases).items() if k in TERMS} for releases in replies]
        alike = max(given, key=given.count)
        replies = [r for r, terms in zip(replies, given, strict=True) if terms == alike]
        if set(alike) != set(TERMS):
            raise ReplyError("shares of one sum name the terms on which they are made")
        silos, tolerated = int(alike["silos"]), int(alike["tolerated"])
        gone = silos - len(replies)
        if gone > tolerated - 1:
            raise NoReplyError(
                f"{gone} of {silos} silos dropped out or have other terms ({', '.join(TERMS)}) than most, and the "
                f"shares tolerate {tolerated} together with one curious silo: nothing is released. Raise tolerated, "
                "or run without that silo"
            )
        return super().combine(replies, facts, state, source)


class TrustedShares(NoSum):
    """n silos add shares of z C / sqrt(n - t): any n - t of them make up the noise of one sum."""

    trust: ClassVar[Trust] = "trusted sum"
    server: ClassVar[type[Plain]] = TrustedSum

    def check(self) -> None:
        super().check()
        side = self.side
        if side.silos < 2:
            raise FieldError("silos", side.silos, 'a sum needs at least 2 silos; a single one has sum = "none"')
        if side.tolerated >= side.silos:
            raise FieldError("tolerated", side.tolerated, f"must leave one of the {side.silos} silos to add noise")

    @property
    def adding(self) -> int:
        return self.side.silos - self.side.tolerated

    @property
    def conditions(self) -> tuple[str, ...]:
        return SUM_IS_TRUSTED, whole_noise(self.side.silos, self.side.tolerated)

    def steps(self, noisy: NoisySteps) -> NoisySteps:
        return replace(noisy, summed=True)

    def require_sites(self, sites: int, field: str) -> None:
        if sites != self.side.silos:
            raise FieldError(field, sites, f"must be silos = {self.side.silos}, for which shares are sized: change one")

    def refusal(self, public: PublicFacts) -> str:
        if public.cohort == self.side.silos:
            return ""
        return f"shares are sized for {self.side.silos} silos, the server plans {public.cohort}"

    def terms(self, noised: NoisySteps) -> Releases:
        known = {**vars(noised), **vars(self.side)}
        return tuple(Release("metric", torch.tensor(float(known[k]), dtype=torch.float64), k) for k in TERMS)
