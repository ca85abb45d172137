"""FedVeil for Flower apps: a privacy mod for clients, a strategy for the server, and a way to run both in one process."""

try:
    import flwr.app  # noqa: F401
except ImportError as error:
    raise ImportError('fedveil.flower needs Flower: pip install "fedveil[flower]"') from error

from fedveil.engines.flower.app import learner_client_app as learner_client_app
from fedveil.engines.flower.app_loop import app_loop as app_loop
from fedveil.engines.flower.grid import InProcessGrid as InProcessGrid
from fedveil.engines.flower.grid import run_in_process as run_in_process
from fedveil.engines.flower.in_process import FlowerFederation as FlowerFederation
from fedveil.engines.flower.inner import WrappedStrategy as WrappedStrategy
from fedveil.engines.flower.lending import training_source as training_source
from fedveil.engines.flower.mod import method_from as method_from
from fedveil.engines.flower.mod import privacy_mod as privacy_mod
from fedveil.engines.flower.native import ExactAccountant as ExactAccountant
from fedveil.engines.flower.records import FACTS as FACTS
from fedveil.engines.flower.records import FAILED as FAILED
from fedveil.engines.flower.records import REFUSED as REFUSED
from fedveil.engines.flower.records import from_arrays as from_arrays
from fedveil.engines.flower.records import read_broadcast as read_broadcast
from fedveil.engines.flower.records import to_arrays as to_arrays
from fedveil.engines.flower.records import write_facts as write_facts
from fedveil.engines.flower.records import write_trained as write_trained
from fedveil.engines.flower.strategy import FedVeilStrategy as FedVeilStrategy
from fedveil.engines.lifetime import begin_ledger as begin_ledger
from fedveil.engines.messages import UnprotectedError as UnprotectedError
from fedveil.engines.server import ServerParty as ServerParty
from fedveil.evidence import ServerFolder as ServerFolder
