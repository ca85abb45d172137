"""Judge claims on client inference from independent runs, also at equal noise and at equal protection."""

from collections.abc import Iterator
from functools import partial

from fedveil_lab.attacks import NoiseSize
from fedveil_lab.config.variants import EQUAL_SIGMA
from fedveil_studies.frame.audited import Audited
from fedveil_studies.frame.claims import untested, verdict_of, within
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.finding import CANNOT_TELL, HOLDS, Decide, Row
from fedveil_studies.metric_privacy.measures import study

UNEQUAL = 0.005  # sigmas that differ by a larger share are not equal
FAR = 0.05  # AUCs that differ by more are not equal
STRONGEST = "strongest attack"  # of those that were played
EQUAL_AUC = "global (equal AUC"  # begins the label of global DP whose noise multiplier was tuned to the same AUC
VANILLA, GLOBAL, METRIC = "vanilla", "global", "metric"


@study.audit("works")
def works(_claim: ClaimOf, audit: Audited) -> Iterator[Row]:
    """Test every attack on the federation without a defence; one that works is enough."""
    plain = audit.setting(VANILLA)
    tried = [attack for attack, setting in audit.scores if setting == plain]
    if plain is None or not tried:
        yield untested("without noise")
        return
    areas = {attack: audit.auc(attack, plain, len(tried)) for attack in tried}
    best = max(areas, key=lambda attack: areas[attack].low)
    area = areas[best]
    verdict = CANNOT_TELL
    if area.low > 0.5:
        verdict = HOLDS
    yield Row(best, verdict, f"AUC {area.point:.3f} ({area.low:.2f} to {area.high:.2f})")


@study.audit("protects")
def protects(claim: ClaimOf, audit: Audited) -> Iterator[Row]:
    """Test whether each attack that works without noise does worse under metric privacy."""
    decide = partial(verdict_of, sign=-1, margin=claim.margin)
    for attack in sorted(audit.valid):
        yield _attack(audit, attack, METRIC, VANILLA, len(audit.valid), decide)


@study.audit("comparable")
def comparable(claim: ClaimOf, audit: Audited) -> Iterator[Row]:
    """Attacks that work without a defence, or evidently against either defence."""
    settings = audit.setting(GLOBAL), audit.setting(METRIC)
    tried = set(audit.valid)
    for attack, setting in audit.scores:
        if attack in tried or setting not in settings:
            continue
        if audit.auc(attack, setting).low > 0.5:
            tried.add(attack)
    decide = partial(within, margin=claim.margin)
    for attack in sorted(tried):
        yield _attack(audit, attack, METRIC, GLOBAL, len(tried), decide)


@study.audit("silent")
def silent(claim: ClaimOf, audit: Audited) -> Iterator[Row]:
    """Beside public noise of the same size: how far models move tells something there too."""
    metric, equal, name = audit.setting(METRIC), _equal_sigma(audit), NoiseSize.name
    if metric is None or equal is None or not audit.tried(name, metric, equal):
        yield untested(name)
        return
    difference = audit.difference(name, metric, equal)
    verdict = verdict_of(difference, -1)
    if difference.high <= claim.margin:
        verdict = HOLDS
    yield Row(name, verdict, f"{_areas(audit, name, metric, equal)}: {difference}")


@study.audit("at equal sigma")
def at_equal_sigma(claim: ClaimOf, audit: Audited) -> Iterator[Row]:
    """Compare attacks with those on global DP of the same average sigma."""
    metric, equal = audit.setting(METRIC), _equal_sigma(audit)
    if metric is None or equal is None:
        yield untested("accuracy")
    elif abs(audit.sigmas[equal] / audit.sigmas[metric] - 1) > UNEQUAL:
        why = f"average sigmas {audit.sigmas[metric]:.4g} and {audit.sigmas[equal]:.4g}"
        yield Row("accuracy", CANNOT_TELL, "", why=why, lacking=True)
    else:
        yield _more_accurate(claim, audit, metric, equal)


@study.audit("at equal auc")
def at_equal_auc(claim: ClaimOf, audit: Audited) -> Iterator[Row]:
    """Compare with global DP whose noise multiplier was tuned until an attack had the same AUC."""
    metric = audit.setting(METRIC)
    matched = [label for label in audit.methods if label.startswith(EQUAL_AUC)]
    if metric is None or not matched:
        yield untested("accuracy")
        return
    for label in matched:
        aucs = [_strength(audit, label, setting) for setting in (metric, label)]
        if abs(aucs[0] - aucs[1]) > FAR:
            why = f"AUC {aucs[0]:.3f} and {aucs[1]:.3f} are not equal"
            yield Row(label, CANNOT_TELL, "", why=why, lacking=True)
            continue
        yield _more_accurate(claim, audit, metric, label)


def _strength(audit: Audited, label: str, setting: str) -> float:
    """The AUC in a setting of the attack that a label names; where it names none, of the strongest."""
    named = label.removeprefix(EQUAL_AUC).strip(", )")
    return max(
        audit.auc(a, s).point for a, s in audit.scores if s == setting and named in (a, STRONGEST)
    )


def _equal_sigma(audit: Audited) -> str | None:
    return next((label for label in audit.methods if label.startswith(EQUAL_SIGMA)), None)


def _more_accurate(claim: ClaimOf, audit: Audited, first: str, second: str) -> Row:
    difference = audit.more_accurate(first, second)
    decide = partial(verdict_of, sign=1, margin=claim.margin)
    label = f"accuracy less that of {second}"
    return Row(label, decide(difference), str(difference), difference, decide)


def _attack(
    audit: Audited, attack: str, first: str, second: str, tried: int, decide: Decide
) -> Row:
    """One of several attacks, which share the error between them."""
    ours, other = audit.setting(first), audit.setting(second)
    if ours is None or other is None or not audit.tried(attack, ours, other):
        return untested(attack)
    difference = audit.difference(attack, ours, other, tried)
    text = f"{_areas(audit, attack, ours, other)}: {difference}"
    return Row(attack, decide(difference), text)


def _areas(audit: Audited, attack: str, first: str, second: str) -> str:
    """Say the areas of an attack in two settings."""
    ours, other = audit.auc(attack, first), audit.auc(attack, second)
    return f"AUC {ours.point:.3f} against {other.point:.3f}"
