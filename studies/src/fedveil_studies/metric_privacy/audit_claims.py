"""Client inference on independent runs: the paper's claims, and metric privacy at equal noise and equal protection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fedveil.attacks import NoiseSize
from fedveil.config.variants import EQUAL_SIGMA
from fedveil_studies.frame.audited import AuditClaim, Audited
from fedveil_studies.frame.claims import decided, untested, verdict_of, within
from fedveil_studies.frame.finding import CANNOT_TELL, HOLDS, Row
from fedveil_studies.metric_privacy.measures import study

MARGIN = 0.02  # of accuracy or AUC: what counts as no difference
AUC_MARGIN = 0.1  # the paper calls .397 and .493 comparable
UNEQUAL = 0.005  # sigmas that differ by a larger share are not equal
FAR = 0.05  # AUCs that differ by more are not equal
STRONGEST = "strongest attack"  # of those that were played
EQUAL_AUC = "global (equal AUC"  # begins the label of global DP whose noise multiplier was tuned to the same AUC
VANILLA, GLOBAL, METRIC = "vanilla", "global", "metric"


def works(audit: Audited) -> Iterator[Row]:
    """Every attack that was tried on the federation without a defence; one that works is enough."""
    plain = audit.setting(VANILLA)
    tried = [attack for attack, setting in audit.scores if setting == plain]
    if plain is None or not tried:
        yield untested("without noise")
        return
    found = {attack: audit.auc(attack, plain, len(tried)) for attack in tried}
    best = max(found, key=lambda attack: found[attack].low)
    value = found[best]
    verdict = HOLDS if value.low > 0.5 else CANNOT_TELL
    yield Row(best, verdict, f"AUC {value.point:.3f} ({value.low:.2f} to {value.high:.2f})")


def protects(audit: Audited) -> Iterator[Row]:
    """Each attack that works without noise does worse under metric privacy."""
    for attack in sorted(audit.valid):
        yield _attack(audit, attack, METRIC, VANILLA, len(audit.valid))


def comparable(audit: Audited) -> Iterator[Row]:
    """Attacks that work without a defence, or evidently against either defence."""
    settings = [audit.setting(GLOBAL), audit.setting(METRIC)]
    tried = [
        attack
        for attack in sorted({attack for attack, _ in audit.scores})
        if attack in audit.valid
        or any(s and (attack, s) in audit.scores and audit.auc(attack, s).low > 0.5 for s in settings)
    ]
    for attack in tried:
        yield _attack(audit, attack, METRIC, GLOBAL, len(tried), alike=True)


def silent(audit: Audited) -> Iterator[Row]:
    """Beside public noise of the same size: how far models move tells something there too."""
    metric, equal, name = audit.setting(METRIC), _equal_sigma(audit), NoiseSize.name
    if metric is None or equal is None or any((name, s) not in audit.scores for s in (metric, equal)):
        yield untested(name)
        return
    found = audit.difference(name, metric, equal)
    aucs = " against ".join(f"{audit.auc(name, s).point:.3f}" for s in (metric, equal))
    verdict = HOLDS if found.high <= AUC_MARGIN else verdict_of(found, -1)
    yield Row(name, verdict, f"AUC {aucs}: {found}")


def at_equal_sigma(audit: Audited) -> Iterator[Row]:
    """Against global DP with the same average sigma in the runs that are compared."""
    metric, equal = audit.setting(METRIC), _equal_sigma(audit)
    if metric is None or equal is None:
        yield untested("accuracy")
    elif abs(audit.sigmas[equal] / audit.sigmas[metric] - 1) > UNEQUAL:
        why = f"average sigmas {audit.sigmas[metric]:.4g} and {audit.sigmas[equal]:.4g}"
        yield Row("accuracy", CANNOT_TELL, "", why=why, lacking=True)
    else:
        yield _more_accurate(audit, metric, equal)


def at_equal_auc(audit: Audited) -> Iterator[Row]:
    """Against global DP whose noise multiplier was tuned until an attack had the same AUC."""
    metric = audit.setting(METRIC)
    matched = [label for label in audit.methods if label.startswith(EQUAL_AUC)]
    if metric is None or not matched:
        yield untested("accuracy")
        return
    for label in matched:
        aucs = [_strength(audit, label, setting) for setting in (metric, label)]
        if abs(aucs[0] - aucs[1]) > FAR:
            yield Row(label, CANNOT_TELL, "", why=f"AUC {aucs[0]:.3f} and {aucs[1]:.3f} are not equal", lacking=True)
            continue
        yield _more_accurate(audit, metric, label)


def _strength(audit: Audited, label: str, setting: str) -> float:
    """The AUC in a setting of the attack that a label names; where it names none, of the strongest."""
    named = label.removeprefix(EQUAL_AUC).strip(", )")
    return max(audit.auc(a, s).point for a, s in audit.scores if s == setting and named in (a, STRONGEST))


def _equal_sigma(audit: Audited) -> str | None:
    return next((label for label in audit.methods if label.startswith(EQUAL_SIGMA)), None)


def _more_accurate(audit: Audited, first: str, second: str) -> Row:
    found = audit.more_accurate(first, second)
    return decided(f"accuracy less that of {second}", found, partial(verdict_of, sign=1, margin=MARGIN))


def _attack(audit: Audited, attack: str, first: str, second: str, tried: int, alike: bool = False) -> Row:
    """One of several attacks, which share the error between them."""
    labels = audit.setting(first), audit.setting(second)
    if labels[0] is None or labels[1] is None or any((attack, s) not in audit.scores for s in labels):
        return untested(attack)
    found = audit.difference(attack, labels[0], labels[1], tried)
    aucs = " against ".join(f"{audit.auc(attack, str(s)).point:.3f}" for s in labels)
    verdict = within(found, AUC_MARGIN) if alike else verdict_of(found, -1, MARGIN)
    return Row(attack, verdict, f"AUC {aucs}: {found}")


study.audit_claims += [
    AuditClaim(
        "A client can tell whether another takes part",
        "section 7.4.2, without noise: the strongest attack that was tried",
        works,
    ),
    AuditClaim(
        "Metric privacy protects against it",
        "section 7.4.2: each attack that works without noise has a lower AUC",
        protects,
    ),
    AuditClaim(
        "As well as global DP does",
        f"section 7.4.2 and conclusions: each attack within {AUC_MARGIN} of AUC",
        comparable,
        answers=("A2", "C2"),
    ),
    AuditClaim(
        "The size of the noise gives nothing away",
        "not asked by the paper: against public noise of the same average size",
        silent,
    ),
    AuditClaim(
        "At equal average noise, metric privacy is more accurate",
        "not asked by the paper: against global DP with the same average sigma",
        at_equal_sigma,
        answers=("A3",),
    ),
    AuditClaim(
        "At equal protection, metric privacy is more accurate",
        "not asked by the paper: against global DP tuned to the same AUC of an attack",
        at_equal_auc,
        answers=("A3",),
    ),
]
