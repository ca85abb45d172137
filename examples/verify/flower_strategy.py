"""A Flower strategy as a mechanism: the model after one round of Flower's fixed clipping at the server.

``fedveil verify examples/verify/flower_strategy.py:mechanism --clients 16 --claim "eps=1 delta=1e-5 zero-out client
total central"``. `weighted_by_examples` is the same with the weights that FedAvg takes by default.
"""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

LEAST = 1e-9  # Flower's clipping divides by the length of an update: one of length 0 raises


def mechanism(data_sets, seed):
    """Every client weighs the same; the noise is for one of them, of a length of at most 1."""
    return aggregated(data_sets, [1] * len(data_sets))


def weighted_by_examples(data_sets, seed):
    """Clients weigh as much as they have examples; the noise is still that of equal weights."""
    return aggregated(data_sets, [max(1, len(rows)) for rows in data_sets])


def aggregated(data_sets, weights):
    """What the strategy makes of the clients' replies; it draws its noise freshly."""
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(),
        noise_multiplier=3.7307,
        clipping_norm=1.0,
        num_sampled_clients=len(data_sets),
    )
    zero = np.zeros(data_sets[0].shape[1])
    strategy.current_arrays = ArrayRecord([zero])  # the model that configure_train would send
    replies = []
    for node, (rows, weight) in enumerate(zip(data_sets, weights, strict=True), 1):
        step = np.nan_to_num(rows, posinf=0, neginf=0).clip(-1e6, 1e6).sum(axis=0) + LEAST
        content = {
            "arrays": ArrayRecord([zero + step]),
            "metrics": MetricRecord({"num-examples": weight}),
        }
        asked = Message(RecordDict(), dst_node_id=node, message_type="train")
        replies.append(Message(RecordDict(content), reply_to=asked))
    arrays, _ = strategy.aggregate_train(1, replies)
    return arrays.to_numpy_ndarrays()
