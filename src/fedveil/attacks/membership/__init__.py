"""Which records was a model trained on, and whose are they: at an outsider, a client or the server."""

from fedveil.attacks.membership.canaries import (
    CanaryRun,
    audited,
    client_canaries,
    orthogonal_records,
    record_canaries,
    server_canaries,
)
from fedveil.attacks.membership.fedmia import by_class, fed_mia, same_classes
from fedveil.attacks.membership.judge import log_roc, membership
from fedveil.attacks.membership.methods import audit_methods
from fedveil.attacks.membership.one_run import OneRun, one_run
from fedveil.attacks.membership.scores import SCORES, bavaria, calibrated, lira, loss, rmia, trajectory
from fedveil.attacks.membership.shadow import Shadows, Signals, balanced, signals, train_shadows
from fedveil.attacks.membership.signals import agreement, by_round_and_client, confidence, loss_of_confidence
from fedveil.attacks.membership.source import guess, source_inference

__all__ = [
    "SCORES",
    "CanaryRun",
    "OneRun",
    "Shadows",
    "Signals",
    "agreement",
    "audit_methods",
    "audited",
    "balanced",
    "bavaria",
    "by_class",
    "by_round_and_client",
    "calibrated",
    "client_canaries",
    "confidence",
    "fed_mia",
    "guess",
    "lira",
    "log_roc",
    "loss",
    "loss_of_confidence",
    "membership",
    "one_run",
    "orthogonal_records",
    "record_canaries",
    "rmia",
    "same_classes",
    "server_canaries",
    "signals",
    "source_inference",
    "train_shadows",
    "trajectory",
]
