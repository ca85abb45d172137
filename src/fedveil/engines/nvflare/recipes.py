"""Protection of a FLARE recipe: the same job, with a FedVeil method in place of its plain mean."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.model_locator import ModelLocator
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.app_common.widgets.intime_model_selector import IntimeModelSelector

from fedveil.engines.nvflare.executor import FedVeilExecutor
from fedveil.engines.nvflare.filters import (
    SWARM_TASKS,
    TRAIN,
    PrivacyFilter,
    ReleaseFilter,
    require_swarm,
)
from fedveil.engines.nvflare.recipe_parts import (
    RECEIVER,
    agreed,
    apps_of,
    arguments,
    drop,
    drop_script,
    is_swarm,
    model_of,
    modules,
    names_of,
    of_kind,
    own_file,
    replace_part,
    require_options,
    require_recipe,
    require_script,
    require_threads,
    workflow_of,
)
from fedveil.engines.nvflare.rules import RuleAggregator
from fedveil.engines.nvflare.shareables import method_of
from fedveil.engines.nvflare.swarm import ATTEMPTS, SwarmPeer, SwarmServer
from fedveil.engines.nvflare.validating import VALIDATION_TASK
from fedveil.errors import FieldError
from fedveil.methods import Method

FLARE_AGGREGATOR = "nvflare.app_common.abstract.aggregator.Aggregator"
SWARM_ID = "fedveil_swarm"
OF_PEERS = (
    "wait",
    "ack",
    "timeout",
)  # arguments of SwarmPeer; all others of a swarm belong to SwarmServer
NOT_OF_SWARMS = ("public", "site_training", "epsilon", "delta", *OF_PEERS)


@dataclass
class Protection:
    """Changes that `protect` makes to a recipe with a server; some need to know the environment.

    Attributes
    ----------
    recipe : Recipe
        Recipe to change, in place.
    method : Method
        Method of server and sites.
    filters, server : dict
        Arguments of the sites' `PrivacyFilter` and of the server's `FedVeilController`.
    say : callable
        Called with a line of text for each change.
    environment : str
        Kind of the environment; "" before it is known.
    """

    recipe: Any
    method: Method
    filters: dict[str, Any]
    server: dict[str, Any]
    say: Callable[[str], None] = print
    environment: str = ""
    before: Callable[[Any], None] = field(init=False)
    tasks: tuple[str, ...] = field(default=(TRAIN, VALIDATION_TASK), init=False)
    tracked: bool = field(default=False, init=False)

    @property
    def local(self) -> bool:
        """Whether the server is not trusted."""
        return self.method.client.trust != "central"

    def change(self, controller: Callable[..., Any]) -> None:
        """Change the job: its workflow, its training, and components that send data past the filters.

        Parameters
        ----------
        controller : callable
            Function that makes the workflow from the arguments `server`.
        """
        recipe = self.recipe
        require_options(recipe)
        require_script(recipe)
        recipe._ensure_client_apps_prepared()
        server, sites = apps_of(recipe)
        self._require_quiet(server, sites)
        self._change_apps(server, sites, controller)
        recipe._job.set_app_packages(["fedveil"])  # it is installed at every site
        self.say(self._said())
        self.before, recipe.process_env = recipe.process_env, self.enter

    def enter(self, env: Any) -> None:
        """Add the filters to the job, unless the sites have their own. FLARE calls this before it deploys the job."""
        self.before(env)
        where = type(env).__name__
        if self.environment not in ("", where):
            accepted = (
                f"the recipe was made for {self.environment}: make it anew, and protect it anew"
            )
            raise FieldError("env", where, accepted)
        first, self.environment = not self.environment, where
        if where == "SimEnv":
            require_threads(env)
        if first:
            self._arrive(env)
        if where not in ("SimEnv", "PocEnv"):
            self.say(
                "FedVeil: the job brings no filter: each site's own local/privacy.json protects it"
            )
        elif first:
            self._bring_filters()

    def _said(self) -> str:
        return f"FedVeil: the job runs {self.method.name!r}, under {self.method.client.trust} trust"

    def _change_apps(
        self, server: Any, sites: Mapping[str, Any], controller: Callable[..., Any]
    ) -> None:
        workflow = workflow_of(self.recipe)
        server.app_config.workflows.remove(workflow)
        server.app_config.ids.remove(workflow.id)
        drop(server, (ModelPersistor, ModelLocator, IntimeModelSelector))
        self.recipe._job.to_server(controller(**self.server))
        if self.filters.get("training") is not None:
            self._train_by_the_site(sites)
        self._silence(sites)
        self._carry_the_model()

    def _arrive(self, env: Any) -> None:
        """Make the changes that depend on the environment."""

    def _bring_filters(self) -> None:
        tasks = list(self.tasks)
        self.recipe.add_client_input_filter(PrivacyFilter(**self.filters), tasks=tasks)
        self.recipe.add_client_output_filter(ReleaseFilter(), tasks=tasks)
        self._carry(modules(self.filters))
        self.say(
            "FedVeil: the job brings the filters, for an experiment: a real site's are its own, in privacy.json"
        )

    def _require_quiet(self, server: Any, sites: Mapping[str, Any]) -> None:
        """Refuse components that send the sites' figures past the filters; report what a trusted server sees."""
        receivers = [type(part).__name__ for part in of_kind(server, RECEIVER)]
        self.tracked = bool(receivers)
        for app in sites.values():
            receivers += [type(part).__name__ for part in of_kind(app, RECEIVER)]
        if receivers and self.local:
            accepted = (
                "takes figures of the sites' data that no method covers: under local trust leave "
            )
            accepted += "add_experiment_tracking out. The job's folder holds what the server itself measured"
            raise FieldError("tracking", receivers, accepted)
        if receivers:
            self.say(
                f"FedVeil: {', '.join(receivers)} takes what training code logs, and no promise covers it"
            )

    def _silence(self, sites: Mapping[str, Any]) -> None:
        """Remove the component that sends logged metrics to the server, unless a trusted server tracks them."""
        if self.tracked:
            return
        for app in sites.values():
            if drop(app, (ConvertToFedEvent,)):
                self.say("FedVeil: what training code logs stays at the site")

    def _train_by_the_site(self, sites: Mapping[str, Any]) -> None:
        """Replace the recipe's script by `FedVeilExecutor`."""
        script = str(getattr(self.recipe, "train_script", ""))
        for app in sites.values():
            app.app_config.executors.clear()
            app.app_config.add_executor(list(self.tasks), FedVeilExecutor())
            drop_script(app, script)
        data = self.filters["training"].get("data")
        self.say(
            f"FedVeil: the recipe's script {script!r} is not run: each site trains by its own module, {data}"
        )

    def _carry_the_model(self) -> None:
        """Add the model's module to the job's files if a script trains; a site that trains itself has its own modules."""
        if self.filters.get("training") is None:
            self._carry(modules(self.filters))

    def _carry(self, names: Sequence[str]) -> None:
        """Add the files of modules to the job, unless they are installed."""
        for name in names:
            file = own_file(name)
            if file is not None:
                self.recipe._job.to_server(str(file))
                self.recipe.add_client_file(str(file))


@dataclass
class SwarmProtection(Protection):
    """Changes that `protect` makes to a swarm: each peer trains by its own module, and combines as FedVeil's server does."""

    def __post_init__(self) -> None:
        self.tasks = (TRAIN, *SWARM_TASKS)

    def _change_apps(
        self, server: Any, sites: Mapping[str, Any], controller: Callable[..., Any]
    ) -> None:
        workflow_of(self.recipe).controller.num_rounds = (
            ATTEMPTS * self.server["rounds"]
        )  # a sum may be asked again
        for app in sites.values():
            drop(app, (object,))
            app.app_config.executors.clear()
            app.app_config.ext_scripts.clear()
            app.app_config.add_executor([TRAIN], FedVeilExecutor())
        data = self.filters["training"].get("data")
        self.say(
            f"FedVeil: the recipe's script is not run: each peer trains by its own module, {data}"
        )
        self.say(
            "FedVeil: no best model is chosen, as a metric is a release: the last model stands"
        )

        if self._named:
            self._bring_peers(self._named)

    @property
    def _named(self) -> list[str]:
        """Names of the peers, if they were given, or follow from their keys."""
        return sorted(self.server.get("sites") or self.server.get("keys") or ())

    def _arrive(self, env: Any) -> None:
        """Add FedVeil's server half to each peer, if the peers' names were not known before."""
        if not self._named:
            self._bring_peers(sorted(names_of(env)))

    def _bring_peers(self, names: list[str]) -> None:
        given: dict[str, Any] = {
            "sites": names,
            "least": max(2, len(names) - 1, self.method.least_sites),
        }
        waits: dict[str, Any] = {"server_id": SWARM_ID}
        for name, value in self.server.items():
            if name in OF_PEERS:
                waits[name] = value
            elif name not in (*NOT_OF_SWARMS, "sites"):
                given[name] = value
        self.recipe._add_to_client_apps(SwarmServer(**given), id=SWARM_ID)
        self.recipe._add_to_client_apps(SwarmPeer(least=given["least"], **waits), tasks=["swarm_*"])


@dataclass
class SwarmRule(Protection):
    """Change that `protect` makes to a swarm without privacy: another aggregation rule."""

    def enter(self, env: Any) -> None:
        """Add no filter, as the peers send their scripts' results unprotected."""
        self.before(env)

    def _said(self) -> str:
        rule = self.server["aggregator"] or "fedavg"
        return f"FedVeil: the peers combine by {rule!r}. Whoever aggregates sees all updates: no promise"

    def _change_apps(
        self, server: Any, sites: Mapping[str, Any], controller: Callable[..., Any]
    ) -> None:
        least = int(self.recipe._job.job.min_clients)
        rule = self.server["aggregator"] or "fedavg"
        given: dict[str, Any] = {
            "rule": rule,
            "sites": self.server.get("sites", least),
            "swarm": True,
        }
        for name in ("weights", "cap"):
            if name in self.server:
                given[name] = self.server[name]
        bears = RuleAggregator(**given).bears
        self.say(f"FedVeil: that rule withstands {bears} malicious of {given['sites']} peers")
        for app in sites.values():
            if drop(app, (IntimeModelSelector,)):
                self.say(
                    "FedVeil: no best model is chosen, as a metric is a release: the last model stands"
                )
            [old] = of_kind(app, FLARE_AGGREGATOR)
            kind = getattr(old, "expected_data_kind", "WEIGHTS")
            replace_part(app, old, RuleAggregator(**given, expected_data_kind=kind))


def protection(
    recipe: Any,
    method: str,
    site: str | Path | Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    aggregator: str | dict[str, Any] | None,
    model: str,
    seed: int | None,
    server: dict[str, Any],
) -> Protection:
    """Return the changes of `fedveil.nvflare.protect` for its arguments.

    Raises
    ------
    FieldError
        For arguments that contradict the site's file, or a method for which a recipe does not suffice.
    """
    require_recipe(recipe)
    given = {} if site is None else arguments(site)
    method = agreed("method", method, given)
    chosen = dict(parameters if parameters is not None else given.get("parameters") or {})
    if parameters is not None and given.get("parameters", chosen) != chosen:
        raise FieldError(
            "parameters", chosen, f"the site's filter has {given['parameters']}: give both the same"
        )
    own, swarm = given.get("training") is not None, is_swarm(recipe)
    built = method_of(method, chosen, aggregator, own, public=server.get("public") is not None)
    if swarm and method == "vanilla":
        return SwarmRule(recipe, built, {}, {"aggregator": aggregator, **server})
    if swarm:
        require_swarm(built, own)
    named, options = model_of(
        recipe, model or str(given.get("model", "")), given.get("model_options")
    )
    shared: dict[str, Any] = {
        "model": named,
        "method": method,
        "parameters": chosen,
        "model_options": options,
    }
    filters = {**given, **shared, "seed": given.get("seed", seed)}
    rounds = workflow_of(recipe).controller.num_rounds
    of_server = {
        **shared,
        "aggregator": aggregator,
        "seed": seed,
        "site_training": own,
        "rounds": rounds,
        **server,
    }
    if swarm:
        return SwarmProtection(recipe, built, {**filters, "swarm": True}, of_server)
    return Protection(recipe, built, filters, of_server)
