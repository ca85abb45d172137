"""Record- and person-level privacy for a sum that nobody has to be trusted with: shares that are random alone.

A site's step is an integer sum of clipped contributions on a grid; what leaves it is that sum with its share of the
noise, under masks that cancel only where all sites of one question are added up (`fedveil.secure`, docs/secure-sum.md).
Learning rate, momentum and the model belong to the server.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedveil.accounting import Release, Trust, digest, nothing
from fedveil.accounting.conditions import KEYS_ARE_SECRET, LIVENESS, NO_FAILURE, few_colluding
from fedveil.errors import FieldError, NoReplyError, ReplyError, require_count, require_positive
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.facts import (
    Broadcast,
    ClientFacts,
    Combined,
    NoisySteps,
    Protected,
    Refusal,
    Releases,
    ServerFacts,
)
from fedveil.methods.record import RecordDP, TrustedSum
from fedveil.secure import SumContext, SumTerms, share, unmasked


@dataclass(frozen=True, kw_only=True)
class RecordSecure(RecordDP):
    """Client side of record- or person-level privacy for a secure sum; see `RecordDP` for the other parameters.

    Parameters
    ----------
    least_sites : int
        m: the smallest roster that is answered, at least 3; needed. A site that drops out costs the others one more
        release each, and the sum needs m that stay.
    colluding : int
        c: sites that may pool what they know with the server, or leave out their noise; the noise is that of m - c.
    retries : int
        Sums beyond one a round that the total has room for, as when a site drops out.
    units : int
        A public number of examples (persons) that no site exceeds, so that sums do not overflow.
    """

    least_sites: int = 0
    colluding: int = 1
    retries: int = 0
    units: int = 1_000_000

    trust: ClassVar[Trust] = "secure sum"

    def __post_init__(self) -> None:
        """Refuse what one sum cannot promise."""
        require_count("retries", self.retries, least=0)
        super().__post_init__()
        if self.steps != 1:
            raise FieldError("steps", self.steps, "must be 1: every step is summed before the next")
        self.terms(1)

    def terms(self, dimension: int) -> SumTerms:
        """What all sites have to agree on, for so many parameters."""
        return SumTerms(
            unit=self.unit,
            relation=self.relation,
            clip=self.clip,
            noise_multiplier=self.multiplier * self._together,
            denominator=self.rate * self._planned,
            rate=self.rate,
            units=self.units,
            dimension=dimension,
            least_sites=self.least_sites,
            colluding=self.colluding,
        )

    def context(self, broadcast: Broadcast, layout: Layout) -> SumContext:
        """The question that a broadcast puts, in this side's own terms."""
        public = broadcast.public
        planned = f"{digest((Release('model', broadcast.models),))} {public.rounds} {public.cohort}"
        shapes = repr([(b.name, tuple(b.shape), str(b.dtype)) for b in layout.blocks])
        return SumContext(
            run=public.run,
            round=public.round,
            attempt=public.attempt,
            roster=public.roster,
            broadcast=hashlib.sha256(planned.encode()).hexdigest(),
            layout=hashlib.sha256(shapes.encode()).hexdigest(),
            terms=self.terms(layout.size),
        )

    @property
    def noisy_steps(self) -> NoisySteps:
        """What the site's trainer is to do: sum on the grid, and add nothing."""
        return NoisySteps(**{**vars(super().noisy_steps), "grid": self.terms(1).grid})

    @property
    def _together(self) -> int:
        return self.silos_per_person

    @property
    def _sums(self) -> int:
        """Sums of a whole run."""
        return (self.rounds or 0) + self.retries

    @property
    def _added(self) -> float:
        return self.multiplier * self._together / math.sqrt(self.least_sites - self.colluding)

    def quote(self, broadcast: Broadcast, state: Any) -> Any:
        """Decline a roster that is too small."""
        if len(broadcast.public.roster) < self.least_sites:
            return Refusal(
                f"a sum of {len(broadcast.public.roster)} sites; this one answers {self.least_sites} or more"
            )
        return super().quote(broadcast, state)

    def protect(self, releases: Releases, facts: ClientFacts, state: Any, source: Source) -> Protected:
        """Add the noise and the masks; everything but the share stays on the site."""
        found = [r.value for r in releases if r.kind == "sum"]
        if facts.site is None:
            raise FieldError("site", None, "is needed: a site has a key of its own, and pins those of the others")
        if facts.failed:
            found = [torch.zeros(facts.layout.size, dtype=torch.int64)]
        if len(found) != 1:
            return Protected((), nothing("local"), state)
        if not facts.failed and facts.noised != self.noisy_steps:
            accepted = "the sum was not made on this method's grid: train with fedveil.learning.PrivateTrainer"
            raise FieldError("noised", facts.noised, accepted)
        context = self.context(facts.broadcast, facts.layout)
        masked = share(found[0], facts.site.key, context, facts.site.peers)
        return Protected((Release("share", masked),), self._spend(), state)

    def _conditions(self) -> tuple[str, ...]:
        few = few_colluding(self.colluding, self.least_sites)
        return (KEYS_ARE_SECRET, few, *self._sizes(), LIVENESS, NO_FAILURE)


@dataclass(frozen=True)
class SecureSum(TrustedSum):
    """Server side of `RecordSecure`: the sum of all shares of a roster, one step against it, and then any optimiser.

    Parameters
    ----------
    lr : float, optional
        Learning rate of the step; by default that of local training, where the engine knows it.
    """

    lr: float | None = None

    def __post_init__(self) -> None:
        """Refuse rules that read single shares."""
        super().__post_init__()
        if self.lr is not None:
            require_positive("lr", self.lr)

    def check_reply(self, releases: Releases, dimension: int) -> None:
        """Admit a share.

        Raises
        ------
        ReplyError
            If it is not one share, int64 [d].
        """
        kinds = [r.kind for r in releases]
        if kinds != ["share"]:
            raise ReplyError(f"a reply to a secure sum is one share, not {kinds}")
        value = releases[0].value
        if value.dtype != torch.int64 or tuple(value.shape) != (dimension,):
            raise ReplyError(f"a share is int64 [{dimension}], not {value.dtype} {tuple(value.shape)}")

    def mean(self, replies: Sequence[Releases], context: SumContext) -> torch.Tensor:
        """The noised mean gradient [d] of a roster, float64."""
        total = unmasked([r.value for releases in replies for r in releases], context)
        return total / (context.terms.denominator * len(context.roster))

    def step(self, facts: ServerFacts, gradient: torch.Tensor, state: Any, source: Source) -> Combined:
        """One step of the rule against a gradient."""
        if self.lr is None:
            raise FieldError("lr", None, "is needed: the step is the server's")
        theta, rule = facts.broadcast.models[0], self.aggregator.for_round(state, source, facts.public_update)
        model, state = rule.step(theta, (-self.lr * gradient).to(theta.dtype), state)
        return Combined(model[None], nothing(), state, {"clients": float(len(facts.broadcast.public.roster))})

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Add up all shares of the roster.

        Raises
        ------
        NoReplyError
            If a site of the roster is missing: the others' shares are random numbers.
        """
        context = facts.question
        if context is None:
            raise FieldError("question", None, "is needed: the shares answer one")
        if len(replies) != len(context.roster):
            missing = len(context.roster) - len(replies)
            raise NoReplyError(f"{missing} of {len(context.roster)} sites are missing: ask again, without them")
        return self.step(facts, self.mean(replies, context), state, source)
