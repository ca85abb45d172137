"""Parts of a FLARE recipe that `protect` checks and changes."""

import importlib.util
import inspect
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedveil.engines.nvflare.kit import protection_of, read_privacy
from fedveil.errors import FieldError, kind_of

SWARM_SERVER = "nvflare.app_common.ccwf.swarm_server_ctl.SwarmServerController"
FLARE_MEAN = ("nvflare.app_common.workflows.fedavg.FedAvg", "nvflare.app_opt.pt.fedavg.PTFedAvg")
SEAMS = ("_job", "process_env", "_ensure_client_apps_prepared")
RECEIVER = "nvflare.app_common.widgets.streaming.AnalyticsReceiver"
# workflows that `protect` cannot change, by the class of their controller, with the reason
REFUSED = {
    "CyclicController": "hands each site's model on to the next one as it is, and no method covers that",
    "CyclicServerController": "hands each site's model on to the next one as it is, and no method covers that",
    "CrossSiteModelEval": "asks each site for its own model and its figures (submit_model, validate): leave "
    "add_cross_site_evaluation out, and measure the last model at the sites",
    "CrossSiteEvalServerController": "asks each site for its own model and its figures: leave do_cross_site_eval out",
    "Scaffold": "sends control variates beside the models, a second release that no method covers",
    "FedOpt": 'is a rule of FedVeil\'s: write FedAvgRecipe, and protect(recipe, aggregator="fedadam")',
}
# options of a recipe that FedVeil's controller lacks, with what to write instead
OPTIONS = {
    "aggregator": "give protect(recipe, aggregator=...) a rule of FedVeil's",
    "aggregation_weights": 'give protect(recipe, aggregator={"name": "fedavg", ...}) the weights of a rule',
    "exclude_vars": "what is shared is the model's layout: keep a layer at the sites by a model without it",
    "initial_ckpt": "load it where the model is made: its function is called at the server alone",
    "stop_cond": "ends the run by figures of the sites' data, which no method covers",
    "patience": "ends the run by figures of the sites' data, which no method covers",
    "model_persistor": "FedVeil keeps the model in the job's folder",
    "fedprox_mu": 'FLARE hands it to the script: write protect(recipe, aggregator={"name": "fedprox", "mu": ...})',
}


def modules(filters: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules that filters and controller import."""
    named = [filters["model"]]
    training = filters.get("training") or {}
    named += [training.get("data", ""), training.get("trainer", "")]
    modules = []
    for name in named:
        module = str(name).partition(":")[0]
        if module and module not in modules:
            modules.append(module)
    return modules


def own_file(module: str) -> Path | None:
    """Return the file of a module that has to travel with a job: one that is neither installed nor in a package."""
    if "." in module:
        return None
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or found.submodule_search_locations is not None:
        return None
    file = Path(found.origin)
    for place in ("purelib", "platlib", "stdlib"):
        if file.is_relative_to(sysconfig.get_path(place)):
            return None
    return file


def arguments(site: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the `PrivacyFilter` in a site's ``privacy.json``, given by path or contents."""
    values = site if isinstance(site, Mapping) else read_privacy(site)
    return protection_of(values)


def agreed(name: str, chosen: str, given: Mapping[str, Any]) -> str:
    """Return the caller's or the site filter's value of a setting; refuse if both differ or both are missing."""
    own = str(given.get(name, ""))
    if chosen and own and chosen != own:
        raise FieldError(name, chosen, f"the site's filter has {own!r}: give both the same")
    if not chosen and not own:
        raise FieldError(name, None, "names a method of FedVeil, such as global or record")
    return chosen or own


def require_recipe(recipe: Any) -> None:
    """Refuse anything but a recipe of a supported FLARE version."""
    lacking = [name for name in SEAMS if not hasattr(recipe, name)]
    if lacking:
        accepted = f"must be a recipe of FLARE 2.9 (it lacks {', '.join(lacking)}). With an older FLARE write the job: "
        accepted += "docs/nvflare.md"
        raise FieldError("recipe", kind_of(recipe), accepted)


def workflow_of(recipe: Any) -> Any:
    """Return the workflow of a recipe; it must be a plain mean or a swarm.

    Raises
    ------
    FieldError
        If the workflow cannot be protected, with the reason.
    """
    server = recipe._job._deploy_map.get("server")
    workflows = [] if server is None else server.app_config.workflows
    mean = None
    for workflow in workflows:
        kind = type(workflow.controller)
        if kind.__name__ in REFUSED:
            raise FieldError("recipe", kind.__name__, REFUSED[kind.__name__])
        if f"{kind.__module__}.{kind.__qualname__}" not in (*FLARE_MEAN, SWARM_SERVER):
            accepted = (
                "is no workflow that FedVeil knows: write FedAvgRecipe or SwarmLearningRecipe"
            )
            raise FieldError("recipe", kind.__name__, accepted)
        mean = workflow
    if mean is None:
        raise FieldError(
            "recipe", kind_of(recipe), "has no workflow of the server's: write FedAvgRecipe"
        )
    return mean


def require_options(recipe: Any) -> None:
    """Refuse options of a recipe that would silently have no effect."""
    for name, instead in OPTIONS.items():
        if getattr(recipe, name, None) not in (None, {}, ""):
            raise FieldError(f"recipe.{name}", getattr(recipe, name), f"is not carried: {instead}")
    expected = str(getattr(getattr(recipe, "server_expected_format", ""), "value", "numpy")).lower()
    if expected != "numpy":
        raise FieldError(
            "recipe.server_expected_format", expected, "must be NUMPY, as FedVeil's messages are"
        )


def require_script(recipe: Any) -> None:
    """Refuse a recipe whose script is not there: FLARE packs it into the job, even where a site trains by its own module."""
    script = getattr(recipe, "train_script", None)
    if isinstance(script, str) and not Path(script).exists():
        accepted = "is no file here, and FLARE packs it into the job: name a script that exists (with a site's own "
        accepted += "training an empty one will do, as it is not run)"
        raise FieldError("train_script", script, accepted)


def require_threads(env: Any) -> None:
    """Refuse a simulator with fewer threads than sites: it would replace the sites' processes and lose their ledgers."""
    if env.num_threads < env.num_clients:
        accepted = f"must be {env.num_clients}, one a site: with fewer FLARE replaces a site's process and its ledger"
        raise FieldError("num_threads", env.num_threads, accepted)


def is_swarm(recipe: Any) -> bool:
    """Whether a recipe's workflow is a swarm."""
    kind = type(workflow_of(recipe).controller)
    return f"{kind.__module__}.{kind.__qualname__}" == SWARM_SERVER


def names_of(env: Any) -> list[str]:
    """Return the names of an environment's sites.

    Raises
    ------
    FieldError
        If the names are not known yet.
    """
    if getattr(env, "clients", None):
        return list(env.clients)
    if getattr(env, "num_clients", 0):
        return [f"site-{number}" for number in range(1, env.num_clients + 1)]
    raise FieldError(
        "sites", None, "must name all peers of the swarm: protect(recipe, ..., sites=[...])"
    )


def apps_of(recipe: Any) -> tuple[Any, dict[str, Any]]:
    """Return the server's app of a job, and the sites' apps by target."""
    apps = dict(recipe._job._deploy_map)
    server = apps.pop("server")
    return server, apps


def of_kind(app: Any, path: str) -> Iterator[Any]:
    """Yield an app's components whose class has this class path or derives from it."""
    for part in app.app_config.components.values():
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(part).__mro__]
        if path in names:
            yield part


def drop(app: Any, kinds: tuple[type, ...]) -> list[Any]:
    """Remove the components of these classes from an app, and return them."""
    config, dropped = app.app_config, []
    for name, part in list(config.components.items()):
        if isinstance(part, kinds):
            dropped.append(config.components.pop(name))
            app._oid_to_cid.pop(
                id(part), None
            )  # FLARE recognises parts by their address, which may be reused
            config.handlers[:] = [handler for handler in config.handlers if handler is not part]
    return dropped


def replace_part(app: Any, old: Any, new: Any) -> None:
    """Replace a component by another one, under the same name."""
    config = app.app_config
    for name, part in list(config.components.items()):
        if part is old:
            drop(app, (type(old),))
            app.app_config.add_component(name, new)


def drop_script(app: Any, script: str) -> None:
    """Remove a script from the job's files."""
    kept = [one for one in app.app_config.ext_scripts if Path(one).name != Path(script).name]
    app.app_config.ext_scripts[:] = kept


def model_of(recipe: Any, named: str, options: Any) -> tuple[str, dict[str, Any] | None]:
    """Return the name and arguments with which server and sites build a recipe's model.

    Raises
    ------
    FieldError
        If the sites could not import the model, or its arguments are unknown.
    """
    given = getattr(recipe, "model", None)
    if named:
        return named, None if options is None else dict(options)
    if isinstance(given, dict):
        path = str(given.get("path") or given.get("class_path") or "")
        module, _, name = path.rpartition(".")
        return f"{module}:{name}", dict(given.get("args") or {})
    if not isinstance(given, nn.Module):
        raise FieldError(
            "model",
            kind_of(given),
            'must be named: protect(recipe, model="package.module:Net")',
        )
    kind = type(given)
    if kind.__module__ == "__main__":
        accepted = (
            "is defined in the script itself, which no site imports: move it to a module of its own"
        )
        raise FieldError("model", kind.__qualname__, accepted)
    required = []
    for name, one in inspect.signature(kind).parameters.items():
        if one.default is one.empty and one.kind in (
            one.POSITIONAL_ONLY,
            one.POSITIONAL_OR_KEYWORD,
            one.KEYWORD_ONLY,
        ):
            required.append(name)
    if required or _shapes(kind()) != _shapes(given):
        accepted = 'was made with arguments that a job cannot carry: write model={"class_path": "module.Net", '
        accepted += '"args": {...}}'
        raise FieldError("model", kind.__qualname__, accepted)
    return f"{kind.__module__}:{kind.__qualname__}", None


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}
