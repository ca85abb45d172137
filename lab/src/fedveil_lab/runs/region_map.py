"""Advice at region level: protect the region, blank it, or protect whole records, as far as a measured map tells.

`MEASURED` repeats ``results/regions/map.json`` (a test holds them together). Every cell has one silo with a linear
classifier, full batches, and content against other content.
"""

from dataclasses import dataclass

from fedveil.accounting import REGIONS
from fedveil.methods import RecordDP
from fedveil_lab.runs.prepare import Setup

PAGE = "results/regions"
LINEAR = ("logistic",)
NEAR = 1.25  # a table's rows and the measured ones may differ by this factor


@dataclass(frozen=True)
class RegionCell:
    """One cell of the map: mean accuracies over five seeds, and which differences are told apart.

    Attributes
    ----------
    data : {"digits", "blood cells", "heart disease"}
        Data set; the first two hold images, the last one is a table.
    records : int
        Training records of the silo.
    epsilon : float
        Total, at a delta of 1e-5.
    none, blanked, record, region : float
        Accuracies without privacy, with the region blanked, at record level and at region level.
    beats_blanked, beats_record : bool
        Whether the 95% interval of the paired difference of region level to this rival lies above 0.
    """

    data: str
    records: int
    epsilon: float
    none: float
    blanked: float
    record: float
    region: float
    beats_blanked: bool
    beats_record: bool

    @property
    def kind(self) -> str:
        """Kind of the data: images, or a table."""
        return "table" if self.data == "heart disease" else "images"

    @property
    def best(self) -> str:
        """The way to take in this cell; where two are not told apart, the one that needs no noise or protects more."""
        if not self.beats_blanked:
            return "blank the region"
        if not self.beats_record:
            return "record level"
        return "region level"

    def __str__(self) -> str:
        lost = self.none - self.blanked
        figures = f"blanked {self.blanked:.3f}, region {self.region:.3f}, record {self.record:.3f}"
        where = f"{self.data}, {self.records} records, epsilon {self.epsilon:g}"
        return f"{self.best}: where blanking loses {lost:.3f} ({figures}; {where})"


MEASURED = (
    RegionCell("heart disease", 500, 1.0, 0.791818, 0.797272, 0.793638, 0.807272, True, True),
    RegionCell("heart disease", 500, 4.0, 0.791818, 0.797272, 0.806364, 0.807276, True, False),
    RegionCell("heart disease", 500, 1.0, 0.791818, 0.78, 0.793638, 0.817272, True, True),
    RegionCell("heart disease", 500, 4.0, 0.791818, 0.78, 0.806364, 0.818182, True, False),
    RegionCell("digits", 300, 1.0, 0.8257, 0.81538, 0.2797, 0.81354, False, True),
    RegionCell("digits", 300, 4.0, 0.8257, 0.81538, 0.56662, 0.81536, False, True),
    RegionCell("digits", 300, 1.0, 0.8257, 0.69986, 0.2797, 0.70408, True, True),
    RegionCell("digits", 300, 4.0, 0.8257, 0.69986, 0.56662, 0.73762, True, True),
    RegionCell("digits", 300, 1.0, 0.8257, 0.43436, 0.2797, 0.49916, True, True),
    RegionCell("digits", 300, 4.0, 0.8257, 0.43436, 0.56662, 0.65244, True, True),
    RegionCell("digits", 1000, 1.0, 0.8766, 0.86288, 0.56782, 0.86292, False, True),
    RegionCell("digits", 1000, 4.0, 0.8766, 0.86288, 0.78552, 0.86346, False, True),
    RegionCell("digits", 1000, 1.0, 0.8766, 0.75708, 0.56782, 0.78336, True, True),
    RegionCell("digits", 1000, 4.0, 0.8766, 0.75708, 0.78552, 0.80162, True, False),
    RegionCell("digits", 1000, 1.0, 0.8766, 0.47554, 0.56782, 0.6902, True, True),
    RegionCell("digits", 1000, 4.0, 0.8766, 0.47554, 0.78552, 0.78264, True, False),
    RegionCell("blood cells", 300, 1.0, 0.653201, 0.593803, 0.290617, 0.605028, False, True),
    RegionCell("blood cells", 300, 4.0, 0.653201, 0.593803, 0.38784, 0.606022, False, True),
    RegionCell("blood cells", 300, 1.0, 0.653201, 0.399532, 0.290617, 0.414966, True, True),
    RegionCell("blood cells", 300, 4.0, 0.653201, 0.399532, 0.38784, 0.451856, True, True),
    RegionCell("blood cells", 300, 1.0, 0.653201, 0.223911, 0.290617, 0.317393, True, False),
    RegionCell("blood cells", 300, 4.0, 0.653201, 0.223911, 0.38784, 0.335925, True, False),
    RegionCell("blood cells", 1000, 1.0, 0.707162, 0.663549, 0.392283, 0.674306, True, True),
    RegionCell("blood cells", 1000, 4.0, 0.707162, 0.663549, 0.422859, 0.679334, True, True),
    RegionCell("blood cells", 1000, 1.0, 0.707162, 0.433674, 0.392283, 0.472026, True, True),
    RegionCell("blood cells", 1000, 4.0, 0.707162, 0.433674, 0.422859, 0.487635, True, True),
    RegionCell("blood cells", 1000, 1.0, 0.707162, 0.257176, 0.392283, 0.398012, True, False),
    RegionCell("blood cells", 1000, 4.0, 0.707162, 0.257176, 0.422859, 0.359018, True, False),
)


def advice_on_regions(setup: Setup, epsilon: float) -> list[str]:
    """Say which of the three ways was best in the map's cells like this run, or why the map has no such cell.

    Parameters
    ----------
    setup : Setup
        A run at region level; of another run nothing is said.
    epsilon : float
        Total of the promise.

    Returns
    -------
    list of str
        A line for each cell, and what they rest on.
    """
    side = setup.method.client
    if not isinstance(side, RecordDP) or side.unit not in REGIONS:
        return []
    reasons = not_covered(setup, side, epsilon)
    if reasons:
        return [
            f"region level, blanking or record level? The map of {PAGE} does not cover this run: {'; '.join(reasons)}. "
            "Try the three on public data of the kind"
        ]
    cells = _cells_like(setup, side, epsilon)
    return [
        "region level, blanking or record level? It follows from what blanking loses. Measured "
        f"({PAGE}; region level began at the blanked model; of two that are not told apart, the one without noise or with "
        "more protection is named):",
        *map(str, cells),
        "what blanking loses in these data, only public data of the kind can tell: compare there",
    ]


def not_covered(setup: Setup, side: RecordDP, epsilon: float) -> list[str]:
    """Name in what a run at region level differs from every cell of the map."""
    reasons: list[str] = []
    if setup.config.model.name not in LINEAR:
        reasons.append(f"model {setup.config.model.name!r}, not a linear classifier")
    if setup.dealt.dataset.task != "classification":
        reasons.append(f"a {setup.dealt.dataset.task}, not one class an example")
    if setup.cohort != 1:
        reasons.append(f"{setup.cohort} silos, not one")
    if side.unit != "region":
        reasons.append("all records of a person, not one record")
    if side.relation != "replace-one":
        reasons.append(f"relation {side.relation!r}, not 'replace-one'")
    if side.rate < 1:
        reasons.append("sampled lots, not full batches")
    epsilons = [cell.epsilon for cell in MEASURED]
    if not min(epsilons) <= epsilon <= max(epsilons):
        reasons.append(f"epsilon {epsilon:g}, not {min(epsilons):g} to {max(epsilons):g}")
    counts = [cell.records for cell in MEASURED if cell.kind == _kind(setup)]
    if not min(counts) / NEAR <= side.planned <= max(counts) * NEAR:
        reasons.append(f"{side.planned:g} records, not {min(counts)} to {max(counts)}")
    return reasons


def _kind(setup: Setup) -> str:
    if len(setup.dealt.dataset.input_shape) == 3:
        return "images"
    return "table"


def _cells_like(setup: Setup, side: RecordDP, epsilon: float) -> list[RegionCell]:
    """Return the cells of the nearest epsilon and number of records, in the order of what blanking loses."""
    same = [cell for cell in MEASURED if cell.kind == _kind(setup)]
    nearest = min(
        same,
        key=lambda cell: (abs(cell.epsilon - epsilon), abs(cell.records - side.planned)),
    )
    cells = [
        cell for cell in same if (cell.epsilon, cell.records) == (nearest.epsilon, nearest.records)
    ]
    return sorted(cells, key=lambda cell: cell.none - cell.blanked)
