"""Pages of the studies of published systems: how they open, and where the figures of the openings stand."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from fedveil_studies.frame import find
from fedveil_studies.frame.claims import judge
from fedveil_studies.frame.evidence import read_evidence
from fedveil_studies.frame.finding import CONTRADICTED, HOLDS, UNLEARNED

RESULTS = Path(__file__).parents[1] / "results"
FIGURE = re.compile(r"(?<![\w.])-?\d*\.?\d+(?![\w])")
ALL_FLIP, REPLACED, HONEST = "a fifth flips labels", "a fifth flips labels and replaces the model", "all honest"
FIVE = ("FedAvg", "FedAvgM", "FedMedian", "FedOpt", "FedYogi")

# Of each figure its place in the study's files; of two places it is the difference.
PLACES = {
    "group-privacy": {
        ".109": [("paper/table-rmse.json", "no noise", "h7", "rmse")],
        ".140": [("paper/table-rmse.json", "no noise", "h1", "rmse")],
        ".118": [("paper/table-sound.json", "nu = 10", "sound-7", "rmse")],
        ".143": [("paper/table-sound.json", "nu = 10", "sound-1", "rmse")],
    },
    "sga-ldp": {
        ".146": [("small/table-V.json", ALL_FLIP, "sga", "accuracy")],
        ".195": [("small/table-V.json", ALL_FLIP, "sga", "accuracy", "chance")],
        ".652": [("small/table-noise.json", ALL_FLIP, "sga-wide", "accuracy")],
        ".654": [("small/table-noise.json", ALL_FLIP, "matched", "accuracy")],
        ".046": [("small/table-replaced.json", REPLACED, "clipped", "attack success")],
        ".469": [("small/table-replaced.json", REPLACED, "vanilla", "attack success")],
        ".645": [("small/table-few.json", HONEST, "vanilla", "membership AUC")],
        ".593": [("small/table-few.json", HONEST, "sga-wide", "membership AUC")],
    },
    "fedre": {
        ".54": [("small/table-1.json", "no privacy", "central", "iou")],
        ".47": [("small/table-1.json", "no privacy", "federated", "iou")],
        ".058": [
            ("small/table-equal.json", "eps 100,000", "sound-uniform", "iou"),
            ("small/table-equal.json", "eps 100,000", "public", "iou"),
        ],
    },
    "metric-privacy": {
        ".069": [("small-printed-noise/table-5.json", FIVE, name, "accuracy") for name in ("global", "metric")],
        ".018": [
            ("small-printed-noise-larger-steps/table-5.json", FIVE, name, "accuracy") for name in ("metric", "global")
        ],
        ".990": [("audit-digits.json", "noise-size", "metric privacy", "auc")],
        ".516": [("audit-digits.json", "noise-size", "global (equal sigma)", "auc")],
    },
}

pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository alone")


def sentences(name):
    paragraph = (RESULTS / name / "README.md").read_text().split("\n\n")[1]
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(paragraph.split()))


def value_at(name, file, row, setting, figure, part="value"):
    """Of several rows the mean."""
    kept = json.loads((RESULTS / name / file).read_text())
    if isinstance(row, tuple):
        return fmean(value_at(name, file, one, setting, figure, part) for one in row)
    if "rows" in kept:
        [found] = [r for r in kept["rows"] if (r["row"], r["setting"], r["figure"]) == (row, setting, figure)]
        return found[part]
    [found] = [r for r in kept["results"] if (r["attack"], r["setting"]) == (row, setting)]
    return found[figure]["point"]


@pytest.mark.parametrize("name", PLACES)
def test_a_page_opens_with_five_short_sentences(name):
    opening = sentences(name)
    assert len(opening) == 5
    for sentence in opening:
        assert len(sentence.split()) <= 40, sentence
        assert len(FIGURE.findall(sentence)) <= 2, sentence


@pytest.mark.parametrize("name", PLACES)
def test_the_figures_that_a_page_opens_with_stand_in_its_files(name):
    figures = re.findall(r"(?<![\w.])(?<!nu = )\.\d+", " ".join(sentences(name)))
    assert set(figures) == set(PLACES[name])
    for figure, places in PLACES[name].items():
        first, *others = (value_at(name, *place) for place in places)
        assert float(figure) == pytest.approx(first - sum(others), abs=0.51 * 10.0 ** (1 - len(figure))), figure


def claims_of(name, figure):
    study = find(name)
    [evidence] = read_evidence(RESULTS / name, study)
    return evidence, [claim for claim in study.described.claims if tuple(figure) in map(tuple, claim.figures)]


def test_a_run_has_to_find_both_lines():
    evidence, [claim] = claims_of("group-privacy", ("synthetic", "to (5, 6)"))
    assert judge(claim, evidence).verdict == CONTRADICTED  # 0 of 5; of the ten distances one is below 1
    for level, share, verdict in ((2.0, "2 of 5", None), (10.0, "5 of 5", HOLDS)):
        found = judge(claim.model_copy(update={"level": level}), evidence)
        assert share in found.rows[0].text
        assert verdict in (None, found.verdict)


def test_at_the_printed_budgets_nothing_was_learned():
    evidence, claims = claims_of("fedre", ("1", "iou"))
    for claim in claims:
        assert {row.why for row in judge(claim, evidence).rows} == {UNLEARNED}
        assert UNLEARNED not in {row.why for row in judge(claim.model_copy(update={"guess": 0.0}), evidence).rows}
