"""The printed rules of the four papers and their sound variants side by side, at noise of the same average length."""

import math
from collections.abc import Sequence

from fedveil_lab.grid import Outcome
from fedveil_studies.frame.result import Value
from fedveil_studies.frame.study import Study

study = Study.of(__name__)


@study.measure("noise length")
def noise_length(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Root mean square length of the noise of one release, of the median client where clients add it; 0 without any."""
    summary = outcomes[0].summary
    return Value((summary.noise("sigma") or 0.0) * math.sqrt(summary.values["dimension"]))
