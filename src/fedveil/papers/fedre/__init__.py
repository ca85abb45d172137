"""The study of the FedRE paper (Xiao et al. 2025) on forged receipts: layer-wise noise from sensitive regions."""

from __future__ import annotations

from fedveil.papers import Study

study = Study.of(__name__)
