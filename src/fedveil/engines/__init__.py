"""Move the tensors, keep the state, write the ledger."""

from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.engines.client import ClientParty
from fedveil.engines.execution import Execution
from fedveil.engines.history import History, RoundRecord
from fedveil.engines.local import Federation
from fedveil.engines.lockstep import Lockstep
from fedveil.engines.party import Round, ServerParty
from fedveil.engines.probe import Probe, Seen
from fedveil.engines.stopping import EarlyStopping

__all__ = [
    "Behaviour",
    "ClientParty",
    "EarlyStopping",
    "Execution",
    "Federation",
    "History",
    "Lockstep",
    "Probe",
    "Round",
    "RoundRecord",
    "Seen",
    "ServerParty",
    "Turn",
]
