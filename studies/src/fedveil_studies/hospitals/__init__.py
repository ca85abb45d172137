"""Study of how many hospitals a formal client-level guarantee needs."""

from collections.abc import Sequence

from fedveil_lab.grid import Outcome
from fedveil_studies.frame import Curve, Study

study = Study.of(__name__)


@study.curve("over the hospitals")
def over_the_hospitals(outcomes: Sequence[Outcome], name: str) -> Curve:
    """Accuracy after the last round against the number of clients."""
    clients, reached = [], []
    for outcome in outcomes:
        values = outcome.summary.values
        clients.append(values["clients"])
        reached.append(values["metrics"]["accuracy"])
    return Curve(clients, reached)
