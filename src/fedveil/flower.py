"""FedVeil for Flower apps: a client mod, a strategy, and a way to run both in one process."""

try:
    import flwr.app  # noqa: F401
except ImportError as error:
    raise ImportError('fedveil.flower needs Flower: pip install "fedveil[flower]"') from error

from fedveil.engines.flower import (
    FACTS,
    FAILED,
    REFUSED,
    ExactAccountant,
    FedVeilStrategy,
    FlowerFederation,
    InProcessGrid,
    UnprotectedError,
    begin_ledger,
    from_arrays,
    learner_client_app,
    method_from,
    privacy_mod,
    read_broadcast,
    run_in_process,
    to_arrays,
    training_source,
    write_facts,
)

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
