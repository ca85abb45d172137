"""Train and measure: models, local training, choice of a hypothesis, layer scores, evaluation."""

from fedveil.learning.batched import BatchedTrainer
from fedveil.learning.clients import ClientData
from fedveil.learning.evaluation import Metrics, evaluate, evaluate_clients, metrics
from fedveil.learning.losses import LOSSES, predict
from fedveil.learning.models import MODELS, build_model, initial_models
from fedveil.learning.scores import layer_scores, region_mask, score_models
from fedveil.learning.trainers import TRAINERS, make_trainer
from fedveil.learning.training import LocalTraining, SequentialTrainer, StepInfo, Trained, choose
from fedveil.learning.workers import WorkerTrainer

__all__ = [
    "LOSSES",
    "MODELS",
    "TRAINERS",
    "BatchedTrainer",
    "ClientData",
    "LocalTraining",
    "Metrics",
    "SequentialTrainer",
    "StepInfo",
    "Trained",
    "WorkerTrainer",
    "build_model",
    "choose",
    "evaluate",
    "evaluate_clients",
    "initial_models",
    "layer_scores",
    "make_trainer",
    "metrics",
    "predict",
    "region_mask",
    "score_models",
]
