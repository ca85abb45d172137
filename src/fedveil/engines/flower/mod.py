"""The privacy mod: a client's half of every method, for any ClientApp; and how it reads its configuration."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedveil.accounting import Ledger, Policy, SpendFilter
from fedveil.aggregation import Aggregator
from fedveil.engines.assembly import AnyMethod, resolve_method
from fedveil.engines.decisions import note_decision
from fedveil.engines.deployed import CAPS, RUN, Settings, with_budget
from fedveil.engines.flower import records
from fedveil.engines.flower.exchange import NOTHING, Exchange, Tell
from fedveil.engines.lifetime import read_policy
from fedveil.engines.party import LineStore
from fedveil.engines.site_keys import site_of
from fedveil.engines.warning import Warnings
from fedveil.errors import FieldError, require_count
from fedveil.layout import Layout
from fedveil.learning import PrivateTrainer
from fedveil.logs import logger
from fedveil.mechanisms import Source, source_of
from fedveil.methods import METHODS, Method, build, parameters, registered_as
from fedveil.methods.publishing import Validation
from fedveil.secure import Site

_LOG = logger("flwr")
CLIENT_FAILED = (
    "the client failed; its own log says why"  # the only thing that a server learns about an error
)
_CALLS: list[
    list[dict[str, Any]]
] = []  # lists of processes that protect in place of the mods that are built meanwhile
PREFIX = "privacy."
# a server may not even propose these, as anybody who knows the seed can remove the noise
OWN = ("seed", "participations", "leakage_cap", "ledger", "head", "dataset", "policy", "key")
OTHERS = ("method", "rounds", *OWN)  # keys that are not parameters of a method

WHERE = (
    "in the node's configuration (privacy.ledger, privacy.head) or as privacy_mod(..., ledger=FOLDER, head=ANOTHER), "
    "after fedveil.flower.begin_ledger(FOLDER, ..., head=ANOTHER) once; for a simulation, "
    'privacy_mod(..., ledger="run")'
)

BudgetOf = Callable[[int], SpendFilter | None]


def _log_failure(partition: int, round_: int, error: Exception) -> None:
    _LOG.error("round %d: the client answered with a zero update", round_, exc_info=error)


@contextmanager
def protected_outside() -> Iterator[list[dict[str, Any]]]:
    """Make `privacy_mod` return mods without effect within this context, and collect the arguments of its calls.

    A node that puts its own privacy mod around an app needs this, because the app's mod would be a second one.
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
    """Build the Flower mod that protects a client's replies; put it first in ``ClientApp(mods=[...])``.

    Parameters
    ----------
    layout : Layout
        Layout of the model.
    method : Method, what `Federation` takes as one, or callable, optional
        Method fixed in code, or ``partition -> method`` if clients' parameters differ. Without it, ``privacy.method``
        and ``privacy.<parameter>`` are read from the node's configuration on each call. The run's configuration,
        written by the author of the run, is only a proposal: a policy accepts or refuses it, and without a policy it is
        refused.
    source : Source, optional
        Randomness of the noise. Default: secure.
    seed : int, optional
        Seed of reproducible noise, for experiments (or ``privacy.seed`` of the node). Anybody who knows the seed can
        remove the noise, so a run cannot propose one.
    budget : callable, optional
        ``partition -> SpendFilter``, which returns a fresh filter on each call; the ledger is charged to it (or
        ``privacy.participations``, ``privacy.leakage-cap``).
    rounds : int, optional
        Number of rounds to which the client agreed (or ``privacy.rounds``); a broadcast with another plan is declined.
        FedRE's noise depends on the planned rounds, so a client that does not trust the server sets this.
    policy : Policy or path, optional
        Policy of the node, or its TOML file (or ``privacy.policy``). It is enforced only if the node pins or verifies
        the app that contains this mod; code that arrives with a run protects nobody.
    ledger : str or path, optional
        Folder of the node's lifetime ledger (or ``privacy.ledger``), or ``"run"`` for a new ledger in each run;
        required with secure noise. ``privacy.dataset`` names the data set (default: the partition). If each round asks
        all nodes, a node that lost its run's ledger stops answering. If cohorts are drawn, it cannot notice the loss,
        so a deployed node should have a lifetime ledger.
    head : str or path, optional
        Folder of the ledger's head (or ``privacy.head``), preferably on another disk; required with a lifetime ledger.
    ledgers : callable, optional
        ``party -> (Ledger, LineStore)``, for ledgers in another place.
    run : str, optional
        Name of the run in the ledger. Default: Flower's run id.
    trainer : PrivateTrainer, optional
        Trainer for methods with noise inside training; make it as in the training code. A failed client answers with
        its noise.
    site : Site or callable, optional
        Key of the site and pinned peers for secure sums, or ``partition -> Site``. Default: the key file in
        ``privacy.key`` of the node, and the policy's table ``[sum]``.
    validation : Validation, optional
        Makes the node validate only: it never trains. It answers an evaluate message with the metric ``"loss"`` of the
        app's evaluate function, noised and charged by `Validation`. The app still needs a train function, or Flower
        refuses the server's greeting.
    tell : callable, optional
        Called with ``(partition, round, error)`` if a client answered with a zero update. Default: the node's log.
    warnings : Warnings, optional
        Receiver of warnings about a client's training under local trust. Default: the node's log.

    Returns
    -------
    Mod
        Mod for ``ClientApp(mods=[...])`` or ``@app.train(mods=[...])``. Under central trust messages of other kinds
        pass.

    Notes
    -----
    Under local trust the server is the adversary. Everything that needs no data is checked, and may be
    refused, before training code runs. Afterwards a client answers with protected releases or, after any failure, with
    a protected zero update. Evaluation is answered without running code; other kinds of message are refused. Errors are
    in the node's log. Under no trust model does the text of an exception leave, as it can quote data or the node's own
    configuration.
    """
    if _CALLS:
        _CALLS[-1].append(dict(locals()))
        return _unchanged
    given = {
        "seed": seed,
        "policy": policy,
        "ledger": RUN if ledgers else ledger,
        "head": head,
        "rounds": rounds,
    }
    kept: dict[int, Warnings] = {}

    def warned(settings: Settings) -> Warnings:
        log = partial(_LOG.warning, f"client {settings.partition}: %s")
        return kept.setdefault(
            settings.partition, warnings or Warnings(settings.method, layout, log)
        )

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            settings = read_settings(
                context, method, source, budget, site, ledgers, validation is None, **given
            )
            exchange = Exchange(
                message, context, call_next, settings, layout, run or str(context.run_id)
            )
            return exchange.answered(trainer, validation, partial(warned, settings), tell)
        except Exception as error:
            _LOG.error(f"{NOTHING}: %s", error, exc_info=error)
            note_decision(verdict="failed", rule="", why=str(error))
            return Message(Error(records.FAILED, CLIENT_FAILED), reply_to=message)

    return mod


def privacy_keys(context: Context, method: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ``privacy.`` keys of the run's configuration, and those of the node's own configuration.

    The node's keys have priority. A method's table, ``privacy.<method>.<parameter>``, counts only if that method is
    used. So one key, ``privacy.method``, switches between methods.

    Parameters
    ----------
    context : Context
        Context of the ServerApp or ClientApp.
    method : Method, optional
        Method fixed in code, which has priority.
    """
    run, own = (
        {
            _plain(key.removeprefix(PREFIX)): value
            for key, value in config.items()
            if key.startswith(PREFIX)
        }
        for config in (context.run_config, context.node_config)
    )
    name = (
        registered_as(method)
        if isinstance(method, Method)
        else own.get("method", run.get("method"))
    )
    return _of_method(run, name), _of_method(own, name)


def _of_method(keys: Mapping[str, Any], method: Any) -> dict[str, Any]:
    tables = {_plain(name): name for name in METHODS}
    own = {key: value for key, value in keys.items() if key.partition(".")[0] not in tables}
    for key, value in keys.items():
        table, _, inner = key.partition(".")
        if tables.get(table) == method and method is not None:
            name = _plain(inner)
            if name in own:
                raise FieldError(
                    f"{PREFIX}{method}.{inner}",
                    value,
                    f"is also given as {PREFIX}{inner}: give it once",
                )
            own[name] = value
    return own


def method_from(context: Context, aggregator: Aggregator | None = None) -> Method:
    """Build the method named in a run's configuration, the same on the server and on every client.

    Parameters
    ----------
    context : Context
        Context of the ServerApp or ClientApp. Its run_config has ``privacy.method`` and
        ``privacy.<method>.<parameter>``, or ``privacy.<parameter>`` for any method. The suffix ``.<layer>`` gives one
        layer's value.
    aggregator : Aggregator, optional
        Aggregation rule of the server.

    Raises
    ------
    FieldError
        For an unknown method or key.
    """
    run, own = privacy_keys(context)
    keys = run | own
    if "method" not in keys:
        raise FieldError(
            "privacy.method", None, "name a method in run_config, or give the method object itself"
        )
    values: dict[str, Any] = {}
    for key, value in keys.items():
        name, _, layer = key.partition(".")
        if name == "aggregator":
            raise FieldError(
                "privacy.aggregator", value, "the rule is the server's: give it to FedVeilStrategy"
            )
        if layer:
            values.setdefault(name, {})[layer] = value
        elif name not in OTHERS or (
            name == "rounds" and "epsilon" in keys and name in parameters(str(keys["method"]))
        ):
            values[name] = value
    return build(str(keys["method"]), aggregator, **values)


def own_method(method: AnyMethod | Callable[[int], AnyMethod] | None, context: Context) -> Method:
    """Return a client's method: given in code, made by the given function of its partition, or else configured."""
    if method is None:
        return method_from(context)
    if callable(method) and not isinstance(method, type):
        method = method(partition_of(context))
    return resolve_method(method)  # type: ignore[arg-type]  # a class is refused by name


def partition_of(context: Context) -> int:
    """Return the partition of a node: ``partition-id`` of its configuration, or else Flower's id of the node.

    Flower's id lasts as long as the node's registered key. With such ids, name a lifetime ledger by
    ``privacy.dataset``, and let the server plan with all connected nodes: ``FedVeilStrategy(clients=None)``.

    Raises
    ------
    FieldError
        For a partition that is not a whole number.
    """
    value = context.node_config.get("partition-id")
    if value is None:
        return context.node_id % 2**63  # the range of numbers in Flower's records
    return require_count("partition-id", value, least=0)


def read_settings(
    context: Context,
    method: AnyMethod | Callable[[int], AnyMethod] | None,
    source: Source | None = None,
    budget: BudgetOf | None = None,
    site: Site | Callable[[int], Site | None] | None = None,
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None,
    trains: bool = True,
    **given: Any,
) -> Settings:
    """Collect a client's settings from code and configuration.

    A client's protection comes from its node: from code, or from the node's configuration. The run's configuration is a
    proposal of the server, and only a policy can accept it. Duplicates, unknown keys, and keys that a run may not set
    are refused.

    Parameters
    ----------
    context, method, source, budget, site, ledgers
        See `privacy_mod`.
    trains : bool
        Whether the node trains.
    **given
        Values from code for seed, policy, ledger, head and rounds; None if code gives none.
    """
    (run, own), partition = privacy_keys(context, method), partition_of(context)
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("ledger") == RUN:  # unless the node names a folder
        given["ledger"] = own.pop("ledger", RUN)
    policy = read_policy({**own, **given}.get("policy"))
    _require_proposals(run, own, policy)
    keys = run | own
    for name in sorted(given.keys() & keys.keys()):
        raise FieldError(f"{PREFIX}{name}", keys[name], "was also given in code: give it once")
    for key, value in keys.items() if method is not None else ():
        if key not in OTHERS or key in ("method", "seed"):
            accepted = "the mod was given its method in code: leave method and seed to code"
            raise FieldError(f"{PREFIX}{key}", value, accepted)
    keys |= given
    if source is not None and "seed" in keys:
        raise FieldError("seed", keys["seed"], "the mod was given a source: leave the seed out")
    chosen, dataset = own_method(method, context), str(keys.get("dataset", partition))
    if chosen.client.trust == "secure sum" and trains:  # a node that only validates is in no sum
        site = site(partition) if callable(site) else site
        site = (
            site_of(keys.get("key"), policy, keys.get("ledger"), dataset) if site is None else site
        )
    settings = Settings(
        partition=partition,
        method=chosen,
        source=source_of(keys.get("seed")) if source is None else source,
        policy=policy,
        ledger=str(keys["ledger"]) if "ledger" in keys else None,
        head=str(keys["head"]) if "head" in keys else None,
        dataset=dataset,
        rounds=keys.get("rounds"),
        budget=budget(partition) if budget is not None else None,
        site=site if isinstance(site, Site) else None,
        ledgers=ledgers,
    )
    return with_budget(settings, {key: keys.get(key) for key in CAPS}, WHERE, trains)


def _require_proposals(
    proposed: Mapping[str, Any], own: Mapping[str, Any], policy: Policy | None
) -> None:
    """Refuse keys in a run's configuration if only the node may set them, or no policy accepts them."""
    for key, value in proposed.items():
        if key in OWN:
            raise FieldError(
                f"{PREFIX}{key}",
                value,
                "is the node's own: it is not taken from the run's configuration",
            )
        if key in own:  # the node's own value has priority
            continue
        if policy is None:
            accepted = "comes from the run's configuration, which the run's starter writes: set it in code or in "
            accepted += "the node's configuration, or give the node a policy with the accepted values (privacy.policy)"
            raise FieldError(f"{PREFIX}{key}", value, accepted)


def _plain(key: str) -> str:
    name, dot, layer = key.partition(".")
    return name.replace("-", "_") + dot + layer
