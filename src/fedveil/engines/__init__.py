"""Move the tensors, keep the state, write the ledger."""

from fedveil.engines.local import Federation, History, RoundRecord
from fedveil.engines.party import ClientParty, Round, ServerParty

__all__ = ["ClientParty", "Federation", "History", "Round", "RoundRecord", "ServerParty"]
