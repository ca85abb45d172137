"""The privacy mod: a client's half of every method, for any ClientApp."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedveil.accounting import Ledger, Policy
from fedveil.engines.assembly import AnyMethod
from fedveil.engines.flower import records
from fedveil.engines.flower.exchange import NOTHING, Exchange, Tell
from fedveil.engines.flower.settings import BudgetOf, read_settings
from fedveil.engines.node import RUN, Settings
from fedveil.engines.party import LineStore
from fedveil.engines.warning import Warnings
from fedveil.layout import Layout
from fedveil.learning import PrivateTrainer
from fedveil.mechanisms import Source
from fedveil.methods.publishing import Validation
from fedveil.secure import Site

_LOG = getLogger("flwr")
TOLD = "the client failed; its own log says why"  # all that a server reads of an error
_CALLS: list[list[dict[str, Any]]] = []  # of whoever protects in the place of the mods that are built meanwhile


def _log_failure(partition: int, round_: int, error: Exception) -> None:
    _LOG.error("round %d: the client answered with a zero update", round_, exc_info=error)


@contextmanager
def protected_outside() -> Iterator[list[dict[str, Any]]]:
    """Within it `privacy_mod` builds a mod that changes nothing, and its arguments are added to the list.

    For a process that wraps an app in a privacy mod of its own: the app's would be a second one inside it.
    """
    _CALLS.append([])
    try:
        yield _CALLS[-1]
    finally:
        _CALLS.pop()


def _unchanged(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    return call_next(message, context)


def privacy_mod(
    layout: Layout,
    method: AnyMethod | Callable[[int], AnyMethod] | None = None,
    *,
    source: Source | None = None,
    seed: int | None = None,
    budget: BudgetOf | None = None,
    rounds: int | None = None,
    policy: Policy | str | Path | None = None,
    ledger: str | Path | None = None,
    head: str | Path | None = None,
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None,
    run: str | None = None,
    trainer: PrivateTrainer | None = None,
    site: Site | Callable[[int], Site | None] | None = None,
    validation: Validation | None = None,
    tell: Tell = _log_failure,
    warnings: Warnings | None = None,
) -> Mod:
    """Build the mod; put it first in ``ClientApp(mods=[...])``, so that all other code runs inside it.

    Parameters
    ----------
    layout : Layout
        What the model shares.
    method : Method, what `Federation` takes as one, or callable, optional
        Pins the method in code; ``partition -> method`` where clients' parameters differ. Without it,
        ``privacy.method`` and ``privacy.<parameter>`` are read on each call from the node's configuration. What the
        run's configuration says, which whoever starts the run writes, is a proposal: a policy accepts or refuses it,
        and without a policy it is refused.
    source : Source, optional
        Randomness of the noise. Default: secure.
    seed : int, optional
        Reproducible noise instead, for experiments (or ``privacy.seed`` of the node): who knows the seed knows the
        noise, so a run cannot propose one.
    budget : callable, optional
        ``partition -> SpendFilter``, a fresh one on each call; it is charged with the ledger (or
        ``privacy.participations``, ``privacy.leakage-cap``).
    rounds : int, optional
        Rounds the client agreed to (or ``privacy.rounds``): a broadcast that plans another number is declined. FedRE's
        noise follows the planned rounds, so a client that does not trust the server sets it.
    policy : Policy or path, optional
        What the node allows, or the TOML file that says so (or ``privacy.policy``). It binds where the node pins or
        verifies the app that holds this mod; code that arrives with a run protects nobody.
    ledger : str or path, optional
        Folder of the node's lifetime ledger (or ``privacy.ledger``; ``privacy.dataset`` names the data set, by default
        the partition), or ``"run"`` for one that begins anew with each run. With secure noise it must be given.
    head : str or path, optional
        Folder of that ledger's head (or ``privacy.head``), on another disk at best: with a lifetime ledger it must be
        given.
    ledgers : callable, optional
        ``party -> (Ledger, LineStore)``: keeps the ledgers elsewhere.
    run : str, optional
        Names the run in the ledger. Default: Flower's run id.
    trainer : PrivateTrainer, optional
        Needed for methods whose noise goes inside training, and made like the one that training code uses: a client
        that fails answers with this one's noise.
    site : Site or callable, optional
        Of secure sums: the site's key and the peers that it pins, or ``partition -> Site``. Default: the key file that
        ``privacy.key`` of the node names, and the policy's table ``[sum]``.
    validation : Validation, optional
        Makes this a node that only validates: it never trains, and answers an evaluate message with the loss that the
        app's evaluate function has among its metrics as ``"loss"``, noised and charged as `Validation` says. The app
        needs a train function all the same, or Flower refuses the server's greeting.
    tell : callable, optional
        ``(partition, round, error)``: told why a client answered with a zero update. Default: the node's log.
    warnings : Warnings, optional
        Told what is odd about a client's training under local trust. Default: one that writes into the node's log.

    Returns
    -------
    Mod
        For ``ClientApp(mods=[...])`` or ``@app.train(mods=[...])``. Under central trust messages of other kinds pass.

    Notes
    -----
    Under local trust the server is the adversary. What can be checked without data is checked, and refused, before
    training code runs; afterwards a client answers with protected releases or, if anything failed, with
    a protected zero update. Evaluation is answered without running any code, and other kinds of message are refused.
    What failed is in the node's log. No text of an exception travels, under any trust model: it can quote data, or the
    node's own configuration.
    """
    if _CALLS:
        _CALLS[-1].append(dict(locals()))
        return _unchanged
    given = {"seed": seed, "policy": policy, "ledger": RUN if ledgers else ledger, "head": head, "rounds": rounds}
    kept: dict[int, Warnings] = {}

    def warned(settings: Settings) -> Warnings:
        log = partial(_LOG.warning, f"client {settings.partition}: %s")
        return kept.setdefault(settings.partition, warnings or Warnings(settings.method, layout, log))

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            settings = read_settings(context, method, source, budget, site, validation is None, **given)
            settings = replace(settings, ledgers=ledgers)
            exchange = Exchange(message, context, call_next, settings, layout, run or str(context.run_id))
            return exchange.answered(trainer, validation, partial(warned, settings), tell)
        except Exception as error:
            _LOG.error(f"{NOTHING}: %s", error, exc_info=error)
            return Message(Error(records.FAILED, TOLD), reply_to=message)

    return mod
