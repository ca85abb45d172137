"""Pages of results: how those of the published systems open, and that the figures of every page stand in its files."""

import bisect
import csv
import json
import random
import re
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest

from fedveil_studies.frame import find
from fedveil_studies.frame.claims import judge
from fedveil_studies.frame.evidence import read_evidence
from fedveil_studies.frame.finding import CONTRADICTED, HOLDS, UNLEARNED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
FIGURE = re.compile(r"(?<![\w.])-?\d*\.?\d+(?![\w])")
ALL_FLIP, REPLACED, HONEST = (
    "a fifth flips labels",
    "a fifth flips labels and replaces the model",
    "all honest",
)
FIVE = ("FedAvg", "FedAvgM", "FedMedian", "FedOpt", "FedYogi")

# Of each figure its place in the study's files; of two places it is the difference.
PLACES = {
    "group-privacy": {
        ".109": [("paper/table-rmse.json", "no noise", "h7", "rmse")],
        ".140": [("paper/table-rmse.json", "no noise", "h1", "rmse")],
        ".029": [
            ("paper/table-sound.json", "nu = 3", name, "rmse") for name in ("sound-1", "sound-7")
        ],
    },
    "sga-ldp": {
        ".146": [("small/table-V.json", ALL_FLIP, "sga", "accuracy")],
        ".195": [("small/table-V.json", ALL_FLIP, "sga", "accuracy", "chance")],
        ".652": [("small/table-noise.json", ALL_FLIP, "sga-wide", "accuracy")],
        ".654": [("small/table-noise.json", ALL_FLIP, "matched", "accuracy")],
        ".046": [("small/table-replaced.json", REPLACED, "clipped", "attack success")],
        ".469": [("small/table-replaced.json", REPLACED, "vanilla", "attack success")],
        ".964": [("small/table-attacked.json", HONEST, "vanilla", "FedMIA")],
        ".969": [("small/table-attacked.json", HONEST, "sga-wide", "FedMIA")],
    },
    "fedre": {
        ".54": [("small/table-1.json", "no privacy", "central", "iou")],
        ".47": [("small/table-1.json", "no privacy", "federated", "iou")],
        ".94": [("small/table-every.json", "noise .1 of the clip", "fedre", "ssim")],
        ".96": [("small/table-every.json", "noise .1 of the clip", "uniform", "ssim")],
        ".058": [
            ("small/table-equal.json", "eps 100,000", "sound-uniform", "iou"),
            ("small/table-equal.json", "eps 100,000", "public", "iou"),
        ],
    },
    "metric-privacy": {
        ".069": [
            ("small-printed-noise/table-5.json", FIVE, name, "accuracy")
            for name in ("global", "metric")
        ],
        ".018": [
            ("small-printed-noise-larger-steps/table-5.json", FIVE, name, "accuracy")
            for name in ("metric", "global")
        ],
        ".990": [("audit-digits.json", "noise-size", "metric privacy", "auc")],
        ".516": [("audit-digits.json", "noise-size", "global (equal sigma)", "auc")],
    },
}

pytestmark = pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ are part of the repository alone"
)


def sentences(name):
    paragraph = (RESULTS / name / "README.md").read_text().split("\n\n")[1]
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(paragraph.split()))


def value_at(name, file, row, setting, figure, part="value"):
    """Of several rows the mean."""
    kept = json.loads((RESULTS / name / file).read_text())
    if isinstance(row, tuple):
        return fmean(value_at(name, file, one, setting, figure, part) for one in row)
    if "rows" in kept:
        [found] = [
            r
            for r in kept["rows"]
            if (r["row"], r["setting"], r["figure"]) == (row, setting, figure)
        ]
        return found[part]
    [found] = [r for r in kept["results"] if (r["attack"], r["setting"]) == (row, setting)]
    return found[figure]["point"]


PAGES = sorted(page.parent.name for page in RESULTS.glob("*/README.md"))
FOUND = [name for name in PAGES if name != "reports"]  # those look at pages, and find nothing


@pytest.mark.parametrize("name", FOUND)
def test_a_page_opens_with_a_few_short_sentences(name):
    opening = sentences(name)
    assert 4 <= len(opening) <= 8
    for sentence in opening:
        assert len(sentence.split()) <= 28, sentence
        assert len(FIGURE.findall(sentence)) <= 2, sentence


@pytest.mark.parametrize("name", PLACES)
def test_the_figures_that_a_page_opens_with_stand_in_its_files(name):
    figures = re.findall(r"(?<![\w.])(?<!nu = )\.\d+", " ".join(sentences(name)))
    assert set(figures) == set(PLACES[name])
    for figure, places in PLACES[name].items():
        first, *others = (value_at(name, *place) for place in places)
        assert float(figure) == pytest.approx(
            first - sum(others), abs=0.51 * 10.0 ** (1 - len(figure))
        ), figure


# Figures that no file of the page's folder holds, by page.
ELSEWHERE = {
    "first-settings": {  # tries of a new user, of parts and of presets, whose runs no file here holds
        ".009",
        ".042",
        ".075",
        ".076",
        ".136",
        ".690",
        ".612",
        ".715",
        ".747",
        ".792",
        ".808",
        ".824",
        ".969",
        ".972",
        ".983",
    },
    "alzheimer-quick": {
        ".920",
        ".0409",
        ".905",
        ".881",
        ".885",
    },  # the configuration's multiplier; the paper's figures
    "distances": {"2.4", "3.6"},  # how many times as long
    "fedre": {".557", ".575"},  # of tiles; the paper's DocTamper column
    "flare-filters": {"1.25"},  # of the textbook's formula
    "formal-calibration": {".865", ".875", ".861", ".851"},  # aims; figures of person-level
    "group-privacy": {"-.079", "-.075"},  # differences of single runs
    "guarantees": {"99.9"},  # percent, of the intervals
    "person-level": {
        ".020",
        ".893",
        "797.3",
        "239.2",
    },  # of tuning, which tuning.csv holds in part; images over patients
    "published": {
        ".211",
        ".752",
        *("1.12", "1.32", "4.02"),
        *("4.84481e-5", "0.0016"),
        *(".9725", ".9786", ".9843", ".9865", ".9889", ".9908", ".985", ".9850", ".9895", ".990"),
        *(".966", ".971", ".972", ".975", ".981", ".982", ".984", ".986"),
    },  # what Opacus has for an app, options of commands, exact intervals of counts, losing.csv and losing-theirs.csv
    "record-level": {  # earlier runs; digits, of the front page; what an epsilon means for attackers and for ten
        *(
            ".837",
            ".948",
            ".917",
            ".962",
            ".525",
            ".944",
            ".931",
            ".875",
            ".880",
            ".878",
            ".937",
            ".913",
            ".959",
        ),
        *(
            ".798",
            ".679",
            ".255",
            ".0772",
            ".0806",
            ".0152",
            ".554",
            ".0198",
            ".00239",
            "81.41",
            "14.5",
        ),
    },
    "sga-ldp": {
        "87.2",
        "19.5",
        "30.9",
    },  # percent of the paper's accuracy, of the neutrophils; sigma sqrt(d / n)
}
BENCHES = {
    "record-level": [RESULTS / "bench" / "avx512" / "per_example.json"]
}  # pages that show benchmarks, too
DECIMAL = re.compile(r"(?<![\w./^])[-+]?\d*\.\d+(?:e-?\d+)?(?![\w]|\.\d)|(?<![\w.])\d+e-\d+")


MEANS = ("value", "published", "chance", "noise", "guarantee")
SPREAD = (*MEANS, "low", "high", "deviation", "values")


def numbers(values):
    """All numbers of a JSON file or of a text."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from numbers(value)
    elif isinstance(values, str):
        yield from map(float, re.findall(r"\d*\.?\d+(?:e-?\d+)?", values))
    elif values is not None and not isinstance(values, bool):
        yield float(values)


def pools_of(name):
    """The numbers behind a page: means alone, with intervals and seeds, and differences of two means of a table.

    Of a study's tables those of one row or setting stand together, of other files all.
    """
    folder, found = RESULTS / name, {"means": {}, "spread": {}, "differences": {}}
    printed = (
        ROOT / "studies" / "src" / "fedveil_studies" / name.replace("-", "_") / "published.csv"
    )
    paper = csv.DictReader(printed.read_text().splitlines()) if printed.is_file() else ()
    every = [(printed, row, {"means": row, "spread": row}) for row in paper]
    for path in (*folder.rglob("*.json"), *folder.glob("*.md"), *BENCHES.get(name, ())):
        if path.name.startswith("table-"):
            rows = json.loads(path.read_text())["rows"]
            for figure in dict.fromkeys(one["figure"] for one in rows):
                of = [
                    one["value"]
                    for one in rows
                    if one["figure"] == figure and one.get("value") is not None
                ]
                found["differences"][path, figure] = [
                    abs(a - b) for a, b in combinations(of[:40], 2)
                ]
            for one in rows:
                kinds = {
                    kind: [one.get(key) for key in keys]
                    for kind, keys in (("means", MEANS), ("spread", SPREAD))
                }
                every.append((path.parent, one, kinds))
        elif path.name != "README.md" and not path.name.startswith("cells"):
            whole = path.read_text() if path.suffix == ".md" else json.loads(path.read_text())
            every.append((path, {"row": "", "setting": ""}, {"means": whole, "spread": whole}))
    for path, one, kinds in every:
        for kind, values in kinds.items():
            for place in ("row", "setting"):
                found[kind].setdefault((path, place, one[place]), []).extend(
                    map(abs, numbers(values))
                )
    return {kind: [sorted(pool) for pool in pools.values()] for kind, pools in found.items()}


def stands(figure, pool):
    """Whether a number of a sorted pool, rounded to the figure's digits, is the figure."""
    power, _, exponent = figure.partition("e")
    value, tolerance = (
        abs(float(figure)),
        0.51 * 10.0 ** (int(exponent or 0) - len(power.partition(".")[2])),
    )
    at = bisect.bisect_left(pool, value - tolerance)
    return at < len(pool) and pool[at] <= value + tolerance


def lost(text, pools, together=2):
    """Figures of a page without a place.

    Those of a table's row have to stand in two pools together: as means, but for what is in brackets (intervals) or
    listed with semicolons (seeds).
    """
    every = sorted(
        number for kind in ("spread", "differences") for pool in pools[kind] for number in pool
    )
    found = []
    for line in text.splitlines():
        figures = set() if line.startswith("    ") else set(DECIMAL.findall(line))
        if line.startswith("|") and figures:
            plain = set(DECIMAL.findall(re.sub(r"\([^)]*\)|[^|]*;[^|]*", "", line)))
            for kind, some in (("means", plain), ("spread", figures - plain)):
                without = [
                    frozenset(one for one in some if not stands(one, pool)) for pool in pools[kind]
                ]
                nearest = sorted(dict.fromkeys(without), key=len)[:5]
                left = (
                    frozenset.intersection(*few)
                    for few in combinations(nearest, min(together, len(nearest)))
                )
                found += min(left, key=len, default=some)
        else:
            found += [figure for figure in figures if not stands(figure, every)]
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_of_a_page_stands_in_its_files(name):
    text, known = (RESULTS / name / "README.md").read_text(), ELSEWHERE.get(name, set())
    assert set(lost(text, pools_of(name))) <= known, "figures without a file"
    assert known <= set(DECIMAL.findall(text)), "exceptions without a figure"


def test_a_wrong_figure_in_a_table_is_often_noticed():
    """Of three digits; two digits of a page with many tables are always somewhere."""
    draw, noticed, tried = random.Random(0), 0, 0
    for name in ("sga-ldp", "person-level", "record-level", "group-privacy", "fedre"):
        pools = pools_of(name)
        for line in (RESULTS / name / "README.md").read_text().splitlines():
            three = [
                figure for figure in DECIMAL.findall(line) if len(figure.partition(".")[2]) == 3
            ]
            if line.startswith("|") and three:
                figure = draw.choice(three)
                wrong = f"{abs(float(figure)) + draw.choice((3, 7, 11)) * 1e-3:.3f}"
                lack = set(lost(line, pools)) - {figure}
                noticed += bool(set(lost(line.replace(figure, wrong, 1), pools)) - lack)
                tried += 1
    assert tried > 50
    assert noticed > tried / 3


COMMIT = re.compile(r"[0-9a-f]{7,40}( (to|or) [0-9a-f]{7,40})?")
STORED = sorted({path.parent for path in RESULTS.rglob("table-*.json")})


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_every_cell_behind_a_table_has_a_line_with_the_commit_that_made_it(folder):
    made = {}
    for path in folder.glob("cells*.json"):
        kept = json.loads(path.read_text())
        made |= {
            line["folder"]: line.get("commit", kept["provenance"]["commit"])
            for line in kept["cells"]
        }
    for path in folder.glob("table-*.json"):
        rows = json.loads(path.read_text())["rows"]
        assert {cell for row in rows for cell in row.get("cells", ())} <= set(made), path.name
        assert all(row.get("cells") for row in rows if row.get("values")), path.name
    assert not [commit for commit in made.values() if not COMMIT.fullmatch(commit)]


def test_every_other_file_of_results_names_its_commit():
    every = [
        path for path in RESULTS.rglob("*.json") if not path.name.startswith(("table-", "cells"))
    ]
    kept = {path: json.loads(path.read_text()) for path in every}
    made = {
        path: one.get("provenance") or one.get("said", one)["made"] for path, one in kept.items()
    }
    commits = {path: known["commit"] for path, known in made.items()}
    assert len(every) > 70
    assert not {
        path.name: commit for path, commit in commits.items() if not re.match(COMMIT, commit)
    }
    assert {path.name for path, commit in commits.items() if "with changes" in commit} <= {
        "noise.json"
    }


def claims_of(name, figure):
    study = find(name)
    [evidence] = (one for one in read_evidence(RESULTS / name, study) if not one.readings)
    return evidence, [
        claim for claim in study.described.claims if tuple(figure) in map(tuple, claim.figures)
    ]


def test_a_run_has_to_find_both_lines():
    evidence, [claim] = claims_of("group-privacy", ("synthetic", "to (5, 6)"))
    assert (
        judge(claim, evidence).verdict == CONTRADICTED
    )  # 0 of 20; of the forty distances two are below 1
    for level, share, verdict in ((2.0, "2 of 20", None), (10.0, "20 of 20", HOLDS)):
        found = judge(claim.model_copy(update={"of": (claim.first, level)}), evidence)
        assert share in found.rows[0].text
        assert verdict in (None, found.verdict)


def test_at_the_printed_budgets_nothing_was_learned(monkeypatch):
    evidence, claims = claims_of("fedre", ("1", "iou"))
    unguessed = evidence.study.described.learned.model_copy(update={"guess": 0.0})
    described = evidence.study.described.model_copy(update={"learned": unguessed})
    for claim in claims:
        assert {row.why for row in judge(claim, evidence).rows} == {UNLEARNED}
        monkeypatch.setattr(evidence.study, "described", described)
        assert UNLEARNED not in {row.why for row in judge(claim, evidence).rows}
        monkeypatch.undo()
