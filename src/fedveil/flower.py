"""FedVeil for Flower apps: a client mod, a strategy, and a way to run both in one process."""

try:
    import flwr.app  # noqa: F401
except ImportError as error:
    raise ImportError('fedveil.flower needs Flower: pip install "fedveil[flower]"') from error

from fedveil.engines.flower.accountant import ExactAccountant
from fedveil.engines.flower.app import FlowerFederation, learner_client_app
from fedveil.engines.flower.grid import InProcessGrid, run_in_process
from fedveil.engines.flower.mod import privacy_mod, training_source
from fedveil.engines.flower.records import (
    FACTS,
    FAILED,
    REFUSED,
    from_arrays,
    read_broadcast,
    to_arrays,
    write_facts,
)
from fedveil.engines.flower.settings import method_from
from fedveil.engines.flower.strategy import FedVeilStrategy
from fedveil.engines.lifetime import begin_ledger
from fedveil.engines.messages import UnprotectedError

__all__ = [
    "FACTS",
    "FAILED",
    "REFUSED",
    "ExactAccountant",
    "FedVeilStrategy",
    "FlowerFederation",
    "InProcessGrid",
    "UnprotectedError",
    "begin_ledger",
    "from_arrays",
    "learner_client_app",
    "method_from",
    "privacy_mod",
    "read_broadcast",
    "run_in_process",
    "to_arrays",
    "training_source",
    "write_facts",
]
