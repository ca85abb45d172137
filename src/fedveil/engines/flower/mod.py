"""The privacy mod: a client's half of every method, for any ClientApp, and what configures it on each call."""

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
CLIENT_FAILED = "the client failed; its own log says why"  # all that a server reads of an error
_CALLS: list[
    list[dict[str, Any]]
] = []  # of whoever protects in the place of the mods that are built meanwhile
PREFIX = "privacy."
# no server may as much as propose these: who knows the seed takes the noise off
OWN = ("seed", "participations", "leakage_cap", "ledger", "head", "dataset", "policy", "key")
OTHERS = ("method", "rounds", *OWN)  # not parameters of a method

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
        A node that lost a run's own ledger answers no more, where each round asks all; where cohorts are drawn, it
        cannot tell: a deployed node has a lifetime ledger.
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
    """The ``privacy.`` keys of the run and of the node's own configuration, which comes before the run's.

    A method's own table, ``privacy.<method>.<parameter>``, counts if that method is used; other methods' are left out,
    so that one key, ``privacy.method``, switches between them.

    Parameters
    ----------
    context : Context
        Of the ServerApp or ClientApp.
    method : Method, optional
        What code says, which comes first.
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
    """Build the method that a run's configuration names, the same on the server and on every client.

    Parameters
    ----------
    context : Context
        Of the ServerApp or ClientApp: ``privacy.method`` and ``privacy.<method>.<parameter>`` of its run_config, or
        ``privacy.<parameter>`` whatever the method, with ``.<layer>`` behind it for one value a layer.
    aggregator : Aggregator, optional
        The server's rule.

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
    """A client's method: what was given in code, for its partition if that is a function, or else its configuration."""
    if method is None:
        return method_from(context)
    if callable(method) and not isinstance(method, type):
        method = method(partition_of(context))
    return resolve_method(method)  # type: ignore[arg-type]  # a class is refused by name


def partition_of(context: Context) -> int:
    """Return the partition of a node: the one that its configuration names, or else the node's own number.

    Flower keeps a node's number as long as its registered key. A lifetime ledger is then named by ``privacy.dataset``,
    and the server plans with whoever is connected: ``FedVeilStrategy(clients=None)``.

    Raises
    ------
    FieldError
        For a partition that is no whole number.
    """
    value = context.node_config.get("partition-id")
    if value is None:
        return context.node_id % 2**63  # as far as Flower's records count
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
    """Put code and configuration together; what is given twice, unknown, or not for the run to say, is refused.

    What protects a client comes from its node: from code, or from the node's configuration. What the run's
    configuration says is the server's proposal, and only a policy can accept one.

    Parameters
    ----------
    context, method, source, budget, site, ledgers
        See `privacy_mod`.
    trains : bool
        Whether the node is more than a validating one.
    **given
        What code says of seed, policy, ledger, head and rounds; None where it says nothing.
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
    if chosen.client.trust == "secure sum" and trains:  # who only validates is in no sum
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
    """Refuse what a run's configuration may not say to this node."""
    for key, value in proposed.items():
        if key in OWN:
            raise FieldError(
                f"{PREFIX}{key}",
                value,
                "is the node's own: it is not taken from the run's configuration",
            )
        if key in own:  # the node's word is the last
            continue
        if policy is None:
            accepted = "comes from the run's configuration, which whoever starts the run writes: set it in code or in "
            accepted += "the node's configuration, or give the node a policy that says what it accepts (privacy.policy)"
            raise FieldError(f"{PREFIX}{key}", value, accepted)


def _plain(key: str) -> str:
    name, dot, layer = key.partition(".")
    return name.replace("-", "_") + dot + layer
