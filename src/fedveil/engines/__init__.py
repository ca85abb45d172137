"""Move the tensors, keep the state, write the ledger."""

from fedveil.engines.history import History, RoundRecord
from fedveil.engines.local import Federation
from fedveil.engines.lockstep import Lockstep
from fedveil.engines.party import ClientParty, Round, ServerParty

__all__ = ["ClientParty", "Federation", "History", "Lockstep", "Round", "RoundRecord", "ServerParty"]
