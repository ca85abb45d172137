"""FedVeil for NVIDIA FLARE: two client filters, a guard and a controller."""

try:
    import nvflare.apis  # noqa: F401
except ImportError as error:
    raise ImportError('fedveil.nvflare needs NVIDIA FLARE: pip install "fedveil[nvflare]"') from error

from fedveil.engines.lifetime import begin_ledger
from fedveil.engines.messages import UnprotectedError
from fedveil.engines.nvflare.controller import FedVeilController
from fedveil.engines.nvflare.filters import PrivacyFilter, ReleaseFilter
from fedveil.engines.nvflare.quiet import JobGuard

__all__ = ["FedVeilController", "JobGuard", "PrivacyFilter", "ReleaseFilter", "UnprotectedError", "begin_ledger"]
