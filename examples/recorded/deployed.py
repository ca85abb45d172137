"""A Flower run whose server keeps its rounds: ``python deployed.py FOLDER [KEY=VALUE ...]``.

Server and sites are Flower's, in one process. Afterwards attack what the server stored:

    fedveil audit FOLDER --recorded --config sites.toml
"""

import sys
from pathlib import Path

from flwr.serverapp import ServerApp

from fedveil.flower import (
    FedVeilStrategy,
    ServerFolder,
    learner_client_app,
    run_in_process,
    to_arrays,
)
from fedveil_lab.config import load
from fedveil_lab.runs.prepare import prepare

SITES = Path(__file__).parent / "sites.toml"


def main(folder: str, changes: list[str]) -> None:
    """Train, and leave the server's folder."""
    setup = prepare(load(str(SITES), changes))
    learner, method = setup.learner, setup.method
    client = learner_client_app(
        learner, setup.clients, method, seed=setup.config.seed, ledger="run"
    )
    server = ServerApp()

    @server.main()
    def run(grid, context):  # type: ignore[no-untyped-def]
        strategy = FedVeilStrategy(
            method,
            learner.layout,
            rounds=setup.config.rounds,
            clients_per_round=setup.config.clients_per_round,
            folder=ServerFolder(folder, keep=("models", "updates")),
            evaluate=False,
        )
        strategy.start(grid, to_arrays(learner.layout, setup.starts[0]))

    run_in_process(server, client, len(setup.clients))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
