"""The study of published tables: private training of others, at the epsilon that can be proven for their code."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedveil.accounting import least_noise
from fedveil.learning import ClientData
from fedveil.methods import fitting
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.deal import deal_out
from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.models import Examples, held_out, outputs
from fedveil_studies.record_level import tuned_of

study = Study.of(__name__)
CHOSEN_ON = "breast"  # rounds, clip and rate come from another table of patients, so no number of this one is read
BASELINE_RATE = 0.5  # without privacy; the rate that was best there, 12, oscillates on these data
CAP = 5  # stays of a patient that are used
DIGITS, SILOS = 60_000.0, {"one": 1, "ten": 10}
PATIENTS, STAYS = (
    4479.0,
    6196.0,
)  # planned for a silo: patients, and stays where single ones are clipped


@study.adjust
def settled(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Set what is not read on these data: borrowed for hearts, chosen on other patients or other digits else."""
    scenario = values["name"].split("-")[0]
    if scenario in ("heart", "own"):
        borrow(values, scale)
    else:
        settle(scenario, values, scale)


def settle(scenario: str, values: dict[str, Any], scale: ScaleOf) -> None:
    """Set rounds, clip and rate as tuned.csv has them; where single stays are clipped, the noise covers all of hers."""
    privacy, data = values["privacy"], values["data"]
    if scenario in ("stays", "group"):
        data["part"] = "rest"
    if scenario == "one":
        data["clients"] = 1
    plain = privacy["method"] == "vanilla"
    line = (
        ("", "")
        if plain
        else ({"secure": "trusted"}.get(privacy["sum"], privacy["sum"]), f"{privacy['epsilon']:g}")
    )
    chosen = tuned_of(__name__, ("scenario", "sum", "epsilon"))[(scenario, *line)]
    if scale.facts.get("chosen", 1):
        values["rounds"] = int(chosen["rounds"])
    values["local"]["lr"] = float(chosen["lr"])
    if plain:
        values["privacy"] = {"method": "vanilla"}
        return
    shared = {key: privacy[key] for key in ("method", "sum", "delta")}
    method = {**shared, "clip": float(chosen["clip"]), "rounds": values["rounds"]}
    if scenario in SILOS:
        digits = DIGITS / SILOS[scenario]
        values["privacy"] = {**method, "epsilon": privacy["epsilon"], "examples": digits}
    elif scenario == "group":
        data["most"] = CAP
        noise = CAP * least_noise(privacy["epsilon"], privacy["delta"], values["rounds"])
        values["privacy"] = {**method, "examples": STAYS, "noise_multiplier": noise}
    else:
        person = {"unit": "person", "people": PATIENTS, "records_per_person": CAP}
        values["privacy"] = {**method, "epsilon": privacy["epsilon"], **person}


def borrow(values: dict[str, Any], scale: ScaleOf) -> None:
    """Set rounds, clip and learning rate as the study of record level chose them on breast cancer data."""
    privacy = values["privacy"]
    plain = privacy["method"] == "vanilla"
    sum_ = "" if plain else {"secure": "trusted"}.get(privacy["sum"], privacy["sum"])
    known = tuned_of("fedveil_studies.record_level", ("scenario", "sum", "epsilon"))
    lines = {key[2]: line for key, line in known.items() if key[:2] == (CHOSEN_ON, sum_)}
    chosen = lines[""] if plain else lines[nearest_level(lines, privacy["epsilon"])]
    if scale.facts.get("chosen", 1):
        values["rounds"] = int(chosen["rounds"])
    values["local"]["lr"] = BASELINE_RATE if plain else float(chosen["lr"])
    if plain:
        values["privacy"] = {"method": "vanilla"}
    else:
        values["privacy"] = {
            **fitting(privacy),
            "clip": float(chosen["clip"]),
            "rounds": values["rounds"],
        }


def nearest_level(lines: dict[str, Any], epsilon: float) -> str:
    """Return the epsilon of the lines that is nearest as a ratio."""

    def ratio(level: str) -> float:
        return max(float(level) / epsilon, epsilon / float(level))

    return min(lines, key=ratio)


@study.measure("hospitals")
def hospitals(outcomes: Sequence[Outcome], of: str) -> Value:
    """Measure the last model at each hospital: the mean of their accuracies, or one hospital's figure.

    A hospital's figures are accuracy, AUC, calibration (mean probability of being ill less the share that is ill) and
    Brier (mean square of probability less 1 or 0).
    """
    [outcome] = outcomes
    config = outcome.cell.config
    dealt = deal_out(config.data, config.seed)
    predicted = {
        client.name: predictions(outcome, client, dealt.dataset.classes) for client in dealt.clients
    }
    if of == "mean accuracy":
        return Value(fmean(accuracy(*each) for each in predicted.values()))
    hospital, _, figure = of.rpartition(" ")
    logits, y = predicted[hospital]
    if figure == "accuracy":
        return Value(accuracy(logits, y))
    ill = logits.double().softmax(1)[:, 1]
    if figure == "calibration":
        return Value(float(ill.mean() - y.double().mean()))
    if figure == "Brier":
        return Value(float((ill - y.double()).square().mean()))
    return Value(float(roc_auc_score(y.numpy(), (logits[:, 1] - logits[:, 0]).numpy())))


def predictions(outcome: Outcome, client: ClientData, classes: int) -> tuple[Tensor, Tensor]:
    """Return logits [n, classes] and classes [n] of what a hospital holds out."""
    x, y = held_out(client)
    return outputs(outcome, Examples(x, y, classes)), y


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the share of right answers."""
    return float((logits.argmax(1) == y).double().mean())
