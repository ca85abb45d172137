"""Global DP with the noise of other runs: the one place where a sigma is matched."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import cast

from fedveil.config import Config, parse
from fedveil.errors import FieldError
from fedveil.methods import GlobalDP
from fedveil.runs.summary import Summary


def matched(config: Config, earlier: Sequence[Summary]) -> Config:
    """A configuration of global DP with the noise multiplier that gives it the average sigma of earlier runs.

    Parameters
    ----------
    config : Config
        Of global DP; its own noise multiplier does not matter.
    earlier : sequence of Summary
        Finished runs of the same federation.

    Raises
    ------
    FieldError
        If one of them added no noise on the server, or sigma follows a clipping norm that adapts.
    """
    sigmas = [summary.noise("sigma") for summary in earlier]
    known = [sigma for sigma in sigmas if sigma is not None]
    if len(known) < len(earlier) or not earlier:
        raise FieldError("match_sigma_of", earlier[0].setting if earlier else "", "added no noise on the server")
    if config.privacy.method != "global":
        raise FieldError("privacy.method", config.privacy.method, "must be 'global' to take the sigma of another run")
    server = cast(GlobalDP, config.privacy.build(config.aggregator).server)
    cohort = config.clients_per_round or int(earlier[0].values["clients"])
    values = config.to_dict()
    values["privacy"]["noise_multiplier"] = server.multiplier_for(fmean(known), cohort)
    return parse(values)
