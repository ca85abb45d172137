"""Move the tensors, keep the state, write the ledger."""

from fedveil.engines.client import ClientParty as ClientParty
from fedveil.engines.federation import Federation as Federation
from fedveil.engines.history import Best as Best
from fedveil.engines.history import History as History
from fedveil.engines.history import RoundRecord as RoundRecord
from fedveil.engines.lockstep import Lockstep as Lockstep
from fedveil.engines.malicious import Behaviour as Behaviour
from fedveil.engines.malicious import Turn as Turn
from fedveil.engines.options import Budgets as Budgets
from fedveil.engines.options import Evaluation as Evaluation
from fedveil.engines.options import Execution as Execution
from fedveil.engines.options import PerClient as PerClient
from fedveil.engines.options import Shared as Shared
from fedveil.engines.rounds import Collected as Collected
from fedveil.engines.rounds import Courier as Courier
from fedveil.engines.rounds import RoundLoop as RoundLoop
from fedveil.engines.seams import Probe as Probe
from fedveil.engines.seams import Seen as Seen
from fedveil.engines.seams import Watched as Watched
from fedveil.engines.server import Round as Round
from fedveil.engines.server import ServerParty as ServerParty
from fedveil.engines.stopping import EarlyStopping as EarlyStopping
