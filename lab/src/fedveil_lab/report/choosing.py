"""Privacy cost of choosing among private runs: the total of all runs that were looked at."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.accounting import Relation, bound_from, composed
from fedveil.gdp import rounded_up
from fedveil_lab.runs.summary import Summary


def cost_of_choosing(summaries: Sequence[Summary]) -> list[str]:
    """Write the total privacy cost of a comparison's runs, a sentence per unit and relation; every seed is a run.

    The total is exact for unsampled Gaussian noise: squares of mu are summed. For sampled batches the privacy loss
    distributions of all steps are composed. Runs with another kind of promise are counted, but not added.
    """
    groups: dict[tuple[str, Relation, float], list[Mapping[str, Any]]] = {}
    for summary in summaries:
        promise: Mapping[str, Any] = next(iter(summary.values["guarantees"].values()))
        if promise["status"] in ("formal", "conditional"):
            groups.setdefault((promise["unit"], promise["relation"], promise["delta"]), []).append(
                promise
            )
    said = []
    for (unit, relation, delta), own in groups.items():
        known = [one for one in own if "mu" in one or "events" in one]
        if len(known) < 2:
            continue
        total = composed([bound_from(one["status"], one) for one in known], relation).epsilon(
            delta, relation
        )
        others = len(own) - len(known)
        more = f" ({others} more have no total that adds up)" * bool(others)
        said.append(
            f"The {len(known)} private runs here have together, for one {unit} ({relation}), epsilon "
            f"{rounded_up(total)} at delta={delta:g}{more}. Choosing one of them costs this total, not the epsilon of "
            "the chosen run. Figures of held-out rows have no noise, so no total covers them. Choosing beforehand, "
            "or by compare --choose, costs nothing."
        )
    return said
