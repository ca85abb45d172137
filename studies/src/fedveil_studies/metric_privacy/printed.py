"""Client inference statistics of the metric-privacy paper, exactly as printed.

Source: Sáinz-Pardo Díaz et al. 2026, sections 7.4.1 and 7.4.2. Kept for comparison with its tables; they prove nothing.

Threat model: semi-honest client; receives the models and the aggregated metrics, holds a tenth of the target's training
examples (multi-round: with Gaussian noise of a fifth of the largest pixel value).

    single shot, after one round of 20 local epochs:   100 (shadow loss - aggregated loss) / shadow loss, in percent
    multi-round, 5 epochs x 20 rounds, once with the target and once without:
        s_r = -loss(W_r, shadow); AUC of the 20 IN against the 20 OUT rounds, 95% bare bootstrap over rounds
"""

from dataclasses import replace

from numpy.typing import ArrayLike

from fedveil.errors import require_positive
from fedveil_lab.attacks import Participation, Verdict, judge
from fedveil_lab.attacks.statistics import auc_interval

SINGLE_SHOT, MULTI_ROUND = "paper-single-shot", "paper-multi-round"
SINGLE_EPOCHS, MULTI_EPOCHS, MULTI_ROUNDS = 20, 5, 20

NOT_INDEPENDENT = (
    "the rounds of one run are not independent, so this interval is no inference about participation: on digits it "
    "excludes .5 in 9 (without noise) and 13 (under global DP) of 40 pairs of runs that both lack the target, not in 2"
)
NO_OTHER_WORLD = "there is no run without the target to set it beside, and the paper reads a larger difference as better protection"


def single_shot(setting: str, shadow_loss: float, aggregated_loss: float) -> Verdict:
    """Relative difference of the two losses of the model after one round, in percent."""
    loss = require_positive("shadow_loss", shadow_loss)
    difference = 100 * (loss - aggregated_loss) / loss
    return Verdict(
        attack=SINGLE_SHOT,
        setting=setting,
        figure="difference of the losses, in percent",
        point=difference,
        low=difference,
        high=difference,
        n=1,
        replication="one run",
        details={"shadow loss": shadow_loss, "aggregated loss": aggregated_loss},
        notes=(NO_OTHER_WORLD,),
    )


def multi_round(setting: str, inside: ArrayLike, outside: ArrayLike) -> Participation:
    """Area under the ROC curve over the rounds of one run with the target and one without; scores [R] each."""
    auc = auc_interval(inside, outside, widened=False)
    verdict = replace(
        judge(MULTI_ROUND, setting, inside, outside), point=auc.point, low=auc.low, high=auc.high
    )
    return replace(
        verdict,
        replication="a round of one run, as printed",
        true_rates={},
        notes=(NOT_INDEPENDENT,),
    )
