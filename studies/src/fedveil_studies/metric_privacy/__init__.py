"""The study of the metric-privacy paper: Sainz-Pardo Diaz et al. 2026, Knowledge-Based Systems 343, 115993."""

from fedveil_studies.metric_privacy import audit_claims as audit_claims
from fedveil_studies.metric_privacy import claims as claims
from fedveil_studies.metric_privacy.measures import study as study
