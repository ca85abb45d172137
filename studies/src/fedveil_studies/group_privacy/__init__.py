"""The study of the group-privacy paper (Galli et al. 2023), personalised federated learning."""

from fedveil_studies.group_privacy import claims, figure_5
from fedveil_studies.group_privacy.measures import study

__all__ = ["claims", "figure_5", "study"]
