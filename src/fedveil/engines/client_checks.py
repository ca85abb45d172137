"""Checks of a client before data are touched: of the broadcast, of a secure sum's question, of the planned rounds."""

import math
from collections.abc import Sequence

from fedveil.accounting import Entry, Ledger, Spend
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.private import PrivateTrainer
from fedveil.methods import Broadcast, Method, PublicFacts
from fedveil.secure import Site, SumContext

PROTECT = "protect"


def release_key(round_: int, question: SumContext | None) -> tuple[int, str]:
    """Return the key of a client's release in its ledger: the round, and under a secure sum also the question."""
    if question is None:
        return round_, PROTECT
    return round_, f"share {question.digest.hex()}"


def require_broadcast(
    broadcast: Broadcast, method: Method, layout: Layout, trainer: PrivateTrainer | None
) -> None:
    """Refuse an invalid broadcast, as far as this can be checked without data.

    Raises
    ------
    FieldError
        If the broadcast does not fit the client's configuration.
    """
    models, public, client = broadcast.models, broadcast.public, method.client
    layout.check(models, "models")
    if public.dimension != layout.size:
        raise FieldError(
            "dimension", public.dimension, f"the client's layout has {layout.size} parameters"
        )
    if client.trust == "central":
        return
    if client.most_models is not None and len(models) > client.most_models:
        accepted = f"{method.name!r} protects no choice among models: it takes {client.most_models}"
        raise FieldError("hypotheses", len(models), accepted)
    if public.round > public.rounds:
        raise FieldError("round", public.round, f"lies beyond the {public.rounds} rounds planned")
    if models.dtype != layout.dtype:
        raise FieldError("models", models.dtype, f"the client's layout is of {layout.dtype}")
    if not broadcast.finite:
        raise FieldError("models", "NaN or infinity", "must be finite")
    if trainer is not None:
        trainer.require_fine(models)


def require_question(question: SumContext, public: PublicFacts, site: Site, ledger: Ledger) -> None:
    """Refuse a question of a secure sum that the site's contract or ledger does not allow.

    Raises
    ------
    FieldError
        If the question is not allowed. The server must not learn the text.
    """
    site.require(question)
    if public.terms != question.terms.text:
        accepted = (
            f"must be this site's own, {question.terms.text}: the contract says whose are right"
        )
        raise FieldError("terms", public.terms, accepted)
    key = release_key(public.round, question)
    if ledger.was_asked(key):
        raise FieldError(
            "run", public.run, "put this question before: a site answers it in one run alone"
        )
    answered = {entry.key for entry in ledger.entries if entry.key[0] == public.round}
    if key not in answered and len(answered) >= site.contract.attempts:
        raise FieldError(
            "attempts", len(answered), f"of round {public.round} were answered: the site's limit"
        )


def all_made(made: Sequence[Entry], rounds: int) -> bool:
    """Whether a client has made all releases of a promise that was composed over this many rounds."""
    shares = [1 / rounds]
    for entry in made:
        if entry.key[1] == PROTECT and entry.attempt == 0 and entry.rounds:
            shares.append(1 / entry.rounds)
    return math.fsum(shares) > 1 + 1e-9


def dearer(spend: Spend, quoted: Spend) -> bool:
    """Whether a spend costs more than its quote, by which filters were charged."""
    if (spend.charge or 0.0) > (quoted.charge or 0.0) or (spend.leakage or 0.0) > (
        quoted.leakage or 0.0
    ):
        return True
    made, promised = spend.guarantee, quoted.guarantee
    return made is not promised and (made.status != promised.status or made.cost > promised.cost)
