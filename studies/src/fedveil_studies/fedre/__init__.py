"""The study of the FedRE paper (Xiao et al. 2025) on forged receipts: layer-wise noise from sensitive regions."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from fedveil_lab.grid import Outcome
from fedveil_studies.fedre import pictures
from fedveil_studies.fedre.defence import (
    CosineInversion,
    EveryInversion,
    NoisedPixels,
    RegionInversion,
    TrainedInversion,
)
from fedveil_studies.fedre.weights import FewImages, ServerWeights
from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.claims import compared, nothing_learned, untested, verdict_of
from fedveil_studies.frame.described import ClaimOf, ScaleOf
from fedveil_studies.frame.evidence import SEEDS, Evidence, differ, difference
from fedveil_studies.frame.finding import CANNOT_TELL, Row

study = Study.of(__name__)
study.probe("inversion")(RegionInversion)
study.probe("cosine")(CosineInversion)
study.probe("every")(EveryInversion)
study.probe("trained")(TrainedInversion)
study.probe("pixels")(NoisedPixels)
study.probe("weights")(ServerWeights)
study.probe("images")(FewImages)
study.picture("forged")(pictures.forged)
study.picture("2")(pictures.maps)
study.picture("4")(pictures.recovered)


@study.adjust
def drawn_anew(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Give each seed its own forgeries and its own test receipts."""
    values["data"]["tamper_seed"] = values["seed"]


@study.measure("probed")
def probed(outcomes: Sequence[Outcome], name: str) -> Value:
    """``probed FIGURE``: mean over the rounds that have it of a probe's figure, or of one that the server reports."""
    finite = []
    for row in outcomes[0].rows:
        figures = row["server"]
        if name in row["figures"]:
            figures = row["figures"]
        value = float(figures[name])
        if math.isfinite(value):
            finite.append(value)
    return Value(fmean(finite or [math.nan]))


@study.judge("above the other row")
def above_the_other_row(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test, by setting, whether a figure in the first row exceeds that in the second."""
    above, below = claim.rows
    decide, guess = partial(verdict_of, sign=1, margin=claim.margin), study.described.learned.guess
    for table, figure in claim.figures:
        measured = evidence.of_figure(table, figure)
        for row, setting in measured:
            if row != below or (above, setting) not in measured:
                continue
            first = evidence.at(table, above, setting, figure)
            second = evidence.at(table, below, setting, figure)
            label = study.settings[setting]
            yield compared(label, first, second, decide, (first, second), guess)


@study.judge("grows with clients")
def grows_with_clients(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test, by budget, whether the first setting's gain on the second is larger with ten clients than with two."""
    [(table, figure)], decide = claim.figures, partial(verdict_of, sign=1, margin=claim.margin)
    for budget in claim.rows:
        places = product((f"{budget}, 10 clients", f"{budget}, 2 clients"), claim.settings)
        results = [evidence.at(table, row, setting, figure) for row, setting in places]
        one, two, three, four = results
        if one is None or two is None or three is None or four is None:
            yield untested(budget)
            continue
        many, few = differ(one, two), differ(three, four)
        if many is None or few is None:
            yield untested(budget)
            continue
        with_ten = dict(zip(many.seeds, many.values, strict=True))
        with_two = dict(zip(few.seeds, few.values, strict=True))
        seeds = sorted(with_ten.keys() & with_two.keys())
        growth = difference([with_ten[seed] - with_two[seed] for seed in seeds], SEEDS, seeds)
        verdict = decide(growth)
        why = nothing_learned(results, study.described.learned.guess)
        if why:
            verdict = CANNOT_TELL
        yield Row(budget, verdict, str(growth), growth, decide, why=why)
