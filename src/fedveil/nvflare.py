"""FedVeil for NVIDIA FLARE: client filters, an executor, guards, controllers, and protection of recipes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

try:
    import nvflare.apis  # noqa: F401
except ImportError as error:
    raise ImportError(
        'fedveil.nvflare needs NVIDIA FLARE: pip install "fedveil[nvflare]"'
    ) from error

from fedveil.engines.lifetime import begin_ledger as begin_ledger
from fedveil.engines.messages import UnprotectedError as UnprotectedError
from fedveil.engines.nvflare.controller import ServerController
from fedveil.engines.nvflare.executor import FedVeilExecutor as FedVeilExecutor
from fedveil.engines.nvflare.filters import PrivacyFilter as PrivacyFilter
from fedveil.engines.nvflare.filters import ReleaseFilter as ReleaseFilter
from fedveil.engines.nvflare.gaussian import GaussianFilter as GaussianFilter
from fedveil.engines.nvflare.gaussian import TaskKeeper as TaskKeeper
from fedveil.engines.nvflare.measuring import check_shapes as check_shapes
from fedveil.engines.nvflare.measuring import measure as measure
from fedveil.engines.nvflare.quiet import JobGuard as JobGuard
from fedveil.engines.nvflare.recipes import protection
from fedveil.engines.nvflare.rules import RuleAggregator as RuleAggregator
from fedveil.engines.nvflare.site_guard import SiteGuard as SiteGuard
from fedveil.engines.nvflare.training import SiteTraining as SiteTraining
from fedveil.evidence import ServerFolder


class FedVeilController(ServerController):
    """FLARE workflow that runs a method's server side, and keeps the run in the job's folder ``fedveil``.

    The folder holds the server's ledger, one line for each round, the model and a summary. Parameters and attributes
    are those of `fedveil.engines.nvflare.controller.ServerController`.
    """

    def folder(self, path: Path) -> ServerFolder:
        """Return the keeper that stores the run in a folder."""
        return ServerFolder(path, keep=self.keep or ())


def protect(
    recipe: Any,
    method: str = "",
    *,
    site: str | Path | Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    aggregator: str | dict[str, Any] | None = None,
    model: str = "",
    seed: int | None = None,
    say: Callable[[str], None] = print,
    **server: Any,
) -> Any:
    """Replace the plain mean of a FLARE recipe by a FedVeil method.

    The recipe's workflow becomes FedVeil's. In a simulation and in a proof of concept (``SimEnv``, ``PocEnv``) the job
    brings the filters, made from `site`. In production (``ProdEnv``, or an exported job) it brings none: each site's
    own ``local/privacy.json`` protects it.

    Parameters
    ----------
    recipe : Recipe
        FLARE recipe with a plain mean, such as ``FedAvgRecipe``; it is changed in place.
    method : str, optional
        Name in `fedveil.methods.METHODS`. Default: that of `site`.
    site : str, Path or mapping, optional
        ``privacy.json`` of a site, or its contents; required by methods that train by a site's own module.
    parameters : mapping, optional
        Parameters of the method. Default: those of `site`.
    aggregator : str or dict, optional
        As in `FedVeilController`.
    model : str, optional
        ``"package.module:Net"``. Default: the recipe's.
    seed : int, optional
        Seed of reproducible noise, for experiments.
    say : callable
        Called with a line of text for each change. Default: print it.
    **server
        Other arguments of `FedVeilController`.

    Returns
    -------
    Recipe
        The same recipe.

    Raises
    ------
    FieldError
        For an unsupported workflow or option, and for a method for which a recipe does not suffice.
    """
    plan = protection(recipe, method, site, parameters, aggregator, model, seed, server)
    plan.say = say
    plan.change(FedVeilController)
    return recipe
