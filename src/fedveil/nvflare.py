"""FedVeil for NVIDIA FLARE: two client filters and a controller."""

try:
    import nvflare.apis  # noqa: F401
except ImportError as error:
    raise ImportError('fedveil.nvflare needs NVIDIA FLARE: pip install "fedveil[nvflare]"') from error

from fedveil.engines.lifetime import begin_ledger
from fedveil.engines.messages import UnprotectedError
from fedveil.engines.nvflare.controller import FedVeilController
from fedveil.engines.nvflare.filters import PrivacyFilter, ReleaseFilter

__all__ = ["FedVeilController", "PrivacyFilter", "ReleaseFilter", "UnprotectedError", "begin_ledger"]
