"""Judges for claims of the metric-privacy paper that no standard judge tests."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import stdev

import scipy

from fedveil_studies.frame.claims import compared, levelled, lying, means, rows_of, verdict_of
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.evidence import Evidence, RunSeries
from fedveil_studies.frame.finding import CANNOT_TELL, CONTRADICTED, HOLDS, UNTESTED, Decide, Row
from fedveil_studies.metric_privacy.measures import rank_correlation, study

SPREAD = 0.028  # the paper: "<= 0.028 across all strategies and approaches", over five runs
SETTINGS = "vanilla", "global", "metric"
BEST, WORST = "FedOpt", "FedAvgM"  # of the paper's rules, in every setting
SCENARIOS = {"5": "homogeneous", "7": "non-iid"}


@study.judge("ranking")
def ranking(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether FedOpt is above the best, and FedAvgM below the worst, of the other rules that train."""
    for table, figure in claim.figures:
        ranked = rows_of(evidence, claim, table, figure, 0)
        for setting in SETTINGS:
            results = {rule: evidence.at(table, rule, setting, figure) for rule in ranked}
            for extreme, sign, word in ((BEST, 1, "above"), (WORST, -1, "below")):
                others = {}
                for rule, result in results.items():
                    if result is not None and rule not in (BEST, WORST):
                        others[rule] = sign * result.mean
                rival = "the others"  # who is next cannot be said before all are there
                if len(others) == len(results) - 2:
                    rival = max(others, key=others.__getitem__)
                ours, other = results[extreme], results.get(rival)
                decide = partial(verdict_of, sign=sign, margin=claim.margin)
                label = f"{SCENARIOS[table]}, {setting}: {extreme} {word} {rival}"
                row = compared(label, ours, other, decide, (ours, other))
                yield replace(row, noise=None, distance=None, tests=len(others))


@study.judge("spread")
def spread(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether the deviation over runs is below the paper's bound, with a normal sample's interval; rows share 5%."""
    [(table, figure)] = claim.figures
    tests, least = len(study.labels) * len(SETTINGS), study.described.seeds_of(claim)
    for row in study.labels:
        for setting in SETTINGS:
            label, seen = f"{row}, {setting}", evidence.at(table, row, setting, figure)
            if seen is None:
                yield Row(label, CANNOT_TELL, "", why=UNTESTED, lacking=True)
                continue
            count = len(seen.values)
            if count < least:
                few = f"{count} of {least} seeds"
                yield Row(label, CANNOT_TELL, "", why=few, lacking=True)
                continue
            deviation, tail = stdev(seen.values), 0.025 / tests
            most, fewest = scipy.stats.chi2.ppf([1 - tail, tail], count - 1)
            low = deviation * ((count - 1) / most) ** 0.5
            high = deviation * ((count - 1) / fewest) ** 0.5
            verdict = CANNOT_TELL
            if high <= SPREAD:
                verdict = HOLDS
            elif low > SPREAD:
                verdict = CONTRADICTED
            yield Row(label, verdict, f"{deviation:.3f} ({low:.3f} to {high:.3f})")


@study.judge("no learning")
def no_learning(_claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether global DP with large multipliers is no better than predicting the largest class."""
    for z in ("0.05", "0.1"):
        seen = evidence.at("B15", f"FedAvg, z = {z}", "global", "accuracy")
        if seen is None or seen.chance is None:
            level = 0.5
        else:
            level = round(seen.chance, 3)
        yield levelled(f"z = {z}", means(seen), level, partial(verdict_of, sign=-1))


def if_the_attack_works(claim: ClaimOf, evidence: Evidence, expect: str) -> Iterator[Row]:
    """An attack that does not work without noise either shows no protection."""
    [(table, figure)] = claim.figures
    without = means(evidence.at(table, "FedAvg", "vanilla", figure))
    works = levelled("FedAvg", without, 0.5, partial(verdict_of, sign=1))
    for row in lying(claim, evidence, expect):
        if row.verdict == HOLDS and works.verdict != HOLDS:
            yield replace(row, verdict=CANNOT_TELL, why="the attack fails without noise too")
        else:
            yield row


study.judge("below, if the attack works")(partial(if_the_attack_works, expect="below"))
study.judge("alike, if the attack works")(partial(if_the_attack_works, expect="alike"))


@study.judge("closer")
def closer(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test, rule by rule, whether the distance in the last round is below that in the first."""
    decide = partial(verdict_of, sign=-1, margin=claim.margin)

    def shrunk(run: RunSeries) -> float:
        distances = run.rounds["distance"]
        return distances[-1] / distances[0]

    yield from _by_rule(claim, evidence, shrunk, 1.0, decide)


@study.judge("less noise when close")
def less_noise_when_close(claim: ClaimOf, evidence: Evidence) -> Iterator[Row]:
    """Test whether sigma grows with the distance from round to round."""

    def correlation(run: RunSeries) -> float:
        return rank_correlation(run.rounds["sigma"], run.rounds["distance"])

    yield from _by_rule(claim, evidence, correlation, 0.0, partial(verdict_of, sign=1))


def _by_rule(
    claim: ClaimOf,
    evidence: Evidence,
    figure: Callable[[RunSeries], float],
    level: float,
    decide: Decide,
) -> Iterator[Row]:
    """A figure of the rounds of metric privacy's runs, seed by seed, against a level."""
    for table, name in claim.figures:
        for row in study.labels:
            seen = evidence.at(table, row, "metric", name)
            by_seed = {}
            for run in evidence.runs:
                if seen is not None and run.folder in seen.cells:
                    by_seed[run.seed] = figure(run)
            judged = levelled(f"table {table}", by_seed, level, decide)
            yield replace(judged, column=row)
