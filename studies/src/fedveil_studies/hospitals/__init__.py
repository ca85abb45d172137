"""Study of how many hospitals a formal client-level guarantee needs."""

from collections.abc import Sequence

from fedveil_lab.grid import Outcome
from fedveil_studies.frame import Curve, Study

study = Study.of(__name__)


@study.curve("over the hospitals")
def over_the_hospitals(outcomes: Sequence[Outcome], name: str) -> Curve:
    """Accuracy after the last round against the number of clients."""
    values = [outcome.summary.values for outcome in outcomes]
    return Curve([v["clients"] for v in values], [v["metrics"]["accuracy"] for v in values])
