"""FedVeil for NVIDIA FLARE: client filters, an executor, a guard and a controller."""

from pathlib import Path

try:
    import nvflare.apis  # noqa: F401
except ImportError as error:
    raise ImportError('fedveil.nvflare needs NVIDIA FLARE: pip install "fedveil[nvflare]"') from error

from fedveil.engines.lifetime import begin_ledger as begin_ledger
from fedveil.engines.messages import UnprotectedError as UnprotectedError
from fedveil.engines.nvflare.controller import ServerController
from fedveil.engines.nvflare.executor import FedVeilExecutor as FedVeilExecutor
from fedveil.engines.nvflare.filters import PrivacyFilter as PrivacyFilter
from fedveil.engines.nvflare.filters import ReleaseFilter as ReleaseFilter
from fedveil.engines.nvflare.measuring import check_shapes as check_shapes
from fedveil.engines.nvflare.measuring import measure as measure
from fedveil.engines.nvflare.quiet import JobGuard as JobGuard
from fedveil.engines.nvflare.training import SiteTraining as SiteTraining
from fedveil.evidence import ServerFolder


class FedVeilController(ServerController):
    """Run a method's server side as a FLARE workflow, and keep the run in the job's folder ``fedveil``.

    The folder holds the server's ledger, one line a round, the model and a summary. Parameters and attributes are those
    of `fedveil.engines.nvflare.controller.ServerController`.
    """

    def folder(self, path: Path) -> ServerFolder:
        """Of the run, below the job's."""
        return ServerFolder(path)
