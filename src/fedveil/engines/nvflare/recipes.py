"""One line for a FLARE recipe: the same job, with a method of FedVeil in the place of its plain mean."""

import importlib.util
import inspect
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.model_locator import ModelLocator
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.app_common.widgets.intime_model_selector import IntimeModelSelector
from torch import nn

from fedveil.engines.nvflare.executor import FedVeilExecutor
from fedveil.engines.nvflare.filters import TRAIN, PrivacyFilter, ReleaseFilter
from fedveil.engines.nvflare.kit import protection_of, read_privacy
from fedveil.engines.nvflare.shareables import method_of
from fedveil.errors import FieldError
from fedveil.methods import Method

FLARE_MEAN = ("nvflare.app_common.workflows.fedavg.FedAvg", "nvflare.app_opt.pt.fedavg.PTFedAvg")
SEAMS = ("_job", "process_env", "_ensure_client_apps_prepared")
RECEIVER = "nvflare.app_common.widgets.streaming.AnalyticsReceiver"
# what a workflow would have to be changed for; by the name of its controller's class
REFUSED = {
    "CyclicController": "hands each site's model on to the next one as it is, and no method covers that",
    "CyclicServerController": "hands each site's model on to the next one as it is, and no method covers that",
    "CrossSiteModelEval": "asks each site for its own model and its figures (submit_model, validate): leave "
    "add_cross_site_evaluation out, and measure the last model at the sites",
    "CrossSiteEvalServerController": "asks each site for its own model and its figures: leave do_cross_site_eval out",
    "Scaffold": "sends control variates beside the models, a second release that no method covers",
    "FedOpt": 'is a rule of FedVeil\'s: write FedAvgRecipe, and protect(recipe, aggregator="fedadam")',
}
# options of a recipe that FedVeil's controller does not have, and what to write instead
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


def protection(
    recipe: Any,
    method: str,
    site: str | Path | Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    aggregator: str | dict[str, Any] | None,
    model: str,
    seed: int | None,
    server: dict[str, Any],
) -> "Protection":
    """What `fedveil.nvflare.protect` is to change, of its arguments.

    Raises
    ------
    FieldError
        For arguments that contradict the site's file, and for a method that a recipe cannot run.
    """
    _require_recipe(recipe)
    given = {} if site is None else _arguments(site)
    method = _agreed("method", method, given)
    chosen = dict(parameters if parameters is not None else given.get("parameters") or {})
    if parameters is not None and given.get("parameters", chosen) != chosen:
        raise FieldError("parameters", chosen, f"the site's filter has {given['parameters']}: give both the same")
    own = given.get("training") is not None
    built = method_of(method, chosen, aggregator, own, public=server.get("public") is not None)
    named, options = _model_of(recipe, model or str(given.get("model", "")), given.get("model_options"))
    shared: dict[str, Any] = {"model": named, "method": method, "parameters": chosen, "model_options": options}
    rounds = {"rounds": getattr(recipe, "num_rounds", None), **server}
    filters = {**given, **shared, "seed": given.get("seed", seed)}
    return Protection(
        recipe,
        built,
        filters,
        {**shared, "aggregator": aggregator, "seed": seed, "site_training": own, **rounds},
    )


@dataclass
class Protection:
    """What `protect` changes in a recipe, and what depends on where it runs.

    Attributes
    ----------
    recipe : Recipe
        The recipe.
    method : Method
        As built.
    filters, server : dict
        Arguments of the sites' `PrivacyFilter` and of the server's `FedVeilController`.
    say : callable
        Takes each line of what was changed.
    environment : str
        Where the recipe runs, once that is known.
    """

    recipe: Any
    method: Method
    filters: dict[str, Any]
    server: dict[str, Any]
    say: Callable[[str], None] = print
    environment: str = ""
    before: Callable[[Any], None] = field(init=False)

    @property
    def local(self) -> bool:
        """Whether the server is not trusted."""
        return self.method.client.trust != "central"

    def change(self, controller: Callable[..., Any]) -> None:
        """Change the job: its workflow, what trains, and what leaves beside the filters.

        Parameters
        ----------
        controller : callable
            Makes the workflow, of the arguments `server`.
        """
        recipe = self.recipe
        workflow = _workflow_of(recipe)
        _require_options(recipe)
        recipe._ensure_client_apps_prepared()
        server, sites = _apps_of(recipe)
        self._require_quiet(server, sites)
        server.app_config.workflows.remove(workflow)
        server.app_config.ids.remove(workflow.id)
        _drop(server, (ModelPersistor, ModelLocator, IntimeModelSelector))
        recipe._job.to_server(controller(**self.server))
        if self.filters.get("training") is not None:
            self._train_by_the_site(sites)
        self._silence(sites)
        recipe._job.set_app_packages(["fedveil"])  # it is installed at every site
        self._carry_the_model()
        self.say(f"FedVeil: the job runs {self.method.name!r}, under {self.method.client.trust} trust")
        self.before, recipe.process_env = recipe.process_env, self.enter

    def enter(self, env: Any) -> None:
        """Bring the filters where sites have none of their own; FLARE calls it before the job is deployed."""
        self.before(env)
        where = type(env).__name__
        if self.environment not in ("", where):
            accepted = f"the recipe was made for {self.environment}: make it anew, and protect it anew"
            raise FieldError("env", where, accepted)
        first, self.environment = not self.environment, where
        if where not in ("SimEnv", "PocEnv"):
            self.say("FedVeil: the job brings no filter: each site's own local/privacy.json protects it")
            return
        if where == "SimEnv":
            _require_threads(env)
        if first:
            self._bring_filters()

    def _bring_filters(self) -> None:
        self.recipe.add_client_input_filter(PrivacyFilter(**self.filters), tasks=[TRAIN])
        self.recipe.add_client_output_filter(ReleaseFilter(), tasks=[TRAIN])
        self.say("FedVeil: the job brings the filters, for an experiment: a real site's are its own, in privacy.json")

    def _require_quiet(self, server: Any, sites: Mapping[str, Any]) -> None:
        """Refuse what would send figures of the sites' data beside the filters; tell what a trusted server sees."""
        receivers = [type(part).__name__ for part in _of_kind(server, RECEIVER)]
        for app in sites.values():
            receivers += [type(part).__name__ for part in _of_kind(app, RECEIVER)]
        if receivers and self.local:
            accepted = "takes figures of the sites' data that no method covers: under local trust leave "
            accepted += "add_experiment_tracking out. The job's folder holds what the server itself measured"
            raise FieldError("tracking", receivers, accepted)
        if receivers:
            self.say(f"FedVeil: {', '.join(receivers)} takes what training code logs, and no promise covers it")

    def _silence(self, sites: Mapping[str, Any]) -> None:
        """Take out, under local trust, what hands logged metrics to the server."""
        if not self.local:
            return
        for app in sites.values():
            if _drop(app, (ConvertToFedEvent,)):
                self.say("FedVeil: what training code logs stays at the site")

    def _train_by_the_site(self, sites: Mapping[str, Any]) -> None:
        """Put `FedVeilExecutor` in the place of the recipe's script."""
        script = str(getattr(self.recipe, "train_script", ""))
        for app in sites.values():
            app.app_config.executors.clear()
            app.app_config.add_executor([TRAIN], FedVeilExecutor())
            _drop_script(app, script)
        data = self.filters["training"].get("data")
        self.say(f"FedVeil: the recipe's script {script!r} is not run: each site trains by its own module, {data}")

    def _carry_the_model(self) -> None:
        """Let the file of the model's module travel with the job, unless it is installed."""
        for name in _modules(self.filters):
            file = _own_file(name)
            if file is not None:
                self.recipe._job.to_server(str(file))
                self.recipe.add_client_file(str(file))


def _modules(filters: Mapping[str, Any]) -> list[str]:
    """Modules that the filters and the controller import by name."""
    named = [filters["model"]]
    training = filters.get("training") or {}
    named += [training.get("data", ""), training.get("trainer", "")]
    modules = []
    for name in named:
        module = str(name).partition(":")[0]
        if module and module not in modules:
            modules.append(module)
    return modules


def _own_file(module: str) -> Path | None:
    """The file of a module that lies in nobody's package and is not installed."""
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


def _arguments(site: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    values = site if isinstance(site, Mapping) else read_privacy(site)
    return protection_of(values)


def _agreed(name: str, chosen: str, given: Mapping[str, Any]) -> str:
    """What the caller and the site's filter both say."""
    own = str(given.get(name, ""))
    if chosen and own and chosen != own:
        raise FieldError(name, chosen, f"the site's filter has {own!r}: give both the same")
    if not chosen and not own:
        raise FieldError(name, None, "names a method of FedVeil, such as global or record")
    return chosen or own


def _require_recipe(recipe: Any) -> None:
    """Refuse what is no recipe, or one of a FLARE whose recipes lack what is used here."""
    lacking = [name for name in SEAMS if not hasattr(recipe, name)]
    if lacking:
        accepted = f"must be a recipe of FLARE 2.9 (it lacks {', '.join(lacking)}). With an older FLARE write the job: "
        accepted += "docs/nvflare.md"
        raise FieldError("recipe", type(recipe).__name__, accepted)


def _workflow_of(recipe: Any) -> Any:
    """The one workflow of a recipe, if it is a plain mean.

    Raises
    ------
    FieldError
        With the reason why the workflow cannot be protected.
    """
    server = recipe._job._deploy_map.get("server")
    workflows = [] if server is None else server.app_config.workflows
    mean = None
    for workflow in workflows:
        kind = type(workflow.controller)
        if kind.__name__ in REFUSED:
            raise FieldError("recipe", kind.__name__, REFUSED[kind.__name__])
        if f"{kind.__module__}.{kind.__qualname__}" not in FLARE_MEAN:
            raise FieldError("recipe", kind.__name__, "is no workflow that FedVeil knows: write FedAvgRecipe")
        mean = workflow
    if mean is None:
        raise FieldError("recipe", type(recipe).__name__, "has no workflow of the server's: write FedAvgRecipe")
    return mean


def _require_options(recipe: Any) -> None:
    """Refuse options of a recipe that would be dropped without a word."""
    for name, instead in OPTIONS.items():
        if getattr(recipe, name, None) not in (None, {}, ""):
            raise FieldError(f"recipe.{name}", getattr(recipe, name), f"is not carried: {instead}")
    expected = str(getattr(getattr(recipe, "server_expected_format", ""), "value", "numpy")).lower()
    if expected != "numpy":
        raise FieldError("recipe.server_expected_format", expected, "must be NUMPY, as FedVeil's messages are")


def _require_threads(env: Any) -> None:
    """Refuse a simulator with fewer threads than sites: it replaces their processes, and their ledgers with them."""
    if env.num_threads < env.num_clients:
        accepted = f"must be {env.num_clients}, one a site: with fewer FLARE replaces a site's process and its ledger"
        raise FieldError("num_threads", env.num_threads, accepted)


def _apps_of(recipe: Any) -> tuple[Any, dict[str, Any]]:
    """The server's app of a job, and the sites' apps by target."""
    apps = dict(recipe._job._deploy_map)
    server = apps.pop("server")
    return server, apps


def _of_kind(app: Any, path: str) -> Iterator[Any]:
    """Components of an app that derive from a class, which need not be importable here."""
    for part in app.app_config.components.values():
        names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(part).__mro__]
        if path in names:
            yield part


def _drop(app: Any, kinds: tuple[type, ...]) -> list[Any]:
    """Take the components of these kinds out of an app; what was taken out."""
    config, dropped = app.app_config, []
    for name, part in list(config.components.items()):
        if isinstance(part, kinds):
            dropped.append(config.components.pop(name))
            config.handlers[:] = [handler for handler in config.handlers if handler is not part]
    return dropped


def _drop_script(app: Any, script: str) -> None:
    """Leave a script that is not run out of the job."""
    kept = [one for one in app.app_config.ext_scripts if Path(one).name != Path(script).name]
    app.app_config.ext_scripts[:] = kept


def _model_of(recipe: Any, named: str, options: Any) -> tuple[str, dict[str, Any] | None]:
    """The name of a recipe's model and its arguments, as the server and the sites build it.

    Raises
    ------
    FieldError
        If the sites could not import it, or its arguments are not known.
    """
    given = getattr(recipe, "model", None)
    if named:
        return named, None if options is None else dict(options)
    if isinstance(given, dict):
        path = str(given.get("path") or given.get("class_path") or "")
        module, _, name = path.rpartition(".")
        return f"{module}:{name}", dict(given.get("args") or {})
    if not isinstance(given, nn.Module):
        raise FieldError("model", type(given).__name__, 'must be named: protect(recipe, model="package.module:Net")')
    kind = type(given)
    if kind.__module__ == "__main__":
        accepted = "is defined in the script itself, which no site imports: move it to a module of its own"
        raise FieldError("model", kind.__qualname__, accepted)
    required = []
    for name, one in inspect.signature(kind).parameters.items():
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            required.append(name)
    if required or _shapes(kind()) != _shapes(given):
        accepted = 'was made with arguments that a job cannot carry: write model={"class_path": "module.Net", '
        accepted += '"args": {...}}'
        raise FieldError("model", kind.__qualname__, accepted)
    return f"{kind.__module__}:{kind.__qualname__}", None


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}
