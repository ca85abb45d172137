"""Train and measure: models, local training, choice of a hypothesis, layer scores, evaluation."""

from fedveil.learning.answers import METRICS, Answers, Figures, metric
from fedveil.learning.batched import BatchedTrainer
from fedveil.learning.choosing import choose, choose_each, client_losses
from fedveil.learning.clients import ClientData
from fedveil.learning.evaluation import evaluate, evaluate_clients
from fedveil.learning.local import LocalTraining, StepInfo, Trained
from fedveil.learning.losses import LOSSES, predict
from fedveil.learning.metrics import metrics
from fedveil.learning.models import MODELS, build_model, initial_models
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.scores import layer_scores, region_mask, score_maps, score_models
from fedveil.learning.trainers import TRAINERS, make_trainer
from fedveil.learning.training import SequentialTrainer
from fedveil.learning.validation import Offence, mend, offences
from fedveil.learning.workers import WorkerTrainer

__all__ = [
    "LOSSES",
    "METRICS",
    "MODELS",
    "TRAINERS",
    "Answers",
    "BatchedTrainer",
    "ClientData",
    "Figures",
    "LocalTraining",
    "Offence",
    "PrivateTrainer",
    "SequentialTrainer",
    "StepInfo",
    "Trained",
    "WorkerTrainer",
    "build_model",
    "choose",
    "choose_each",
    "client_losses",
    "evaluate",
    "evaluate_clients",
    "initial_models",
    "layer_scores",
    "make_trainer",
    "mend",
    "metric",
    "metrics",
    "offences",
    "predict",
    "region_mask",
    "score_maps",
    "score_models",
]
