"""The study of the group-privacy paper (Galli et al. 2023), personalised federated learning."""

from fedveil_studies.group_privacy import claims as claims
from fedveil_studies.group_privacy import figure_1 as figure_1
from fedveil_studies.group_privacy import figure_5 as figure_5
from fedveil_studies.group_privacy.measures import study as study
