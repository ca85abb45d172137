"""The study of the FedRE paper (Xiao et al. 2025) on forged receipts: layer-wise noise from sensitive regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from fedveil.grid import Outcome
from fedveil_studies.fedre import pictures
from fedveil_studies.fedre.defence import CosineInversion, NoisedPixels, RegionInversion
from fedveil_studies.fedre.weights import FewImages, ServerWeights
from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.claims import levelled, means, verdict_of
from fedveil_studies.frame.described import ClaimOf, ScaleOf
from fedveil_studies.frame.evidence import Evidence
from fedveil_studies.frame.finding import Row

ENOUGH = 0.05  # total variation of shares of the budget that changes nothing

study = Study.of(__name__)
study.probe("inversion")(RegionInversion)
study.probe("cosine")(CosineInversion)
study.probe("pixels")(NoisedPixels)
study.probe("weights")(ServerWeights)
study.probe("images")(FewImages)
study.picture("forged")(pictures.forged)
study.picture("2")(pictures.maps)
study.picture("4")(pictures.recovered)


@study.adjust
def drawn_anew(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Each seed has its own forgeries and its own receipts to measure on."""
    values["data"]["tamper_seed"] = values["seed"]


@study.measure("probed")
def probed(outcomes: Sequence[Outcome], name: str) -> Value:
    """``probed FIGURE``: mean over the rounds of a probe's figure, or of one that the server reports."""
    rows = outcomes[0].rows
    return Value(fmean(float((row["figures"] if name in row["figures"] else row["server"])[name]) for row in rows))


@study.judge("few images")
def few_images(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """The shares of the budget from few images are nearly those from many."""
    [(table, figure)] = claim.figures
    for row in evidence.study.described.tables[table].rows:
        label = evidence.study.label(row)
        seen = means(evidence.at(table, label, "fedre", figure))
        yield levelled(label, seen, ENOUGH, partial(verdict_of, sign=-1))


@study.judge("less noise")
def less_noise(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """The server's weights leave less noise than the plain mean, at every row of the table."""
    [(table, figure)] = claim.figures
    for part in evidence.study.described.tables[table].parts:
        for row, setting in product(part.rows, part.settings):
            label = evidence.study.label(row)
            seen = means(evidence.at(table, label, setting, figure))
            yield levelled(
                f"{label}, {setting}" if setting != "fedre" else label, seen, 1.0, partial(verdict_of, sign=-1)
            )
