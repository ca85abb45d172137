"""A Flower mod as a mechanism: what the clients of one round send through Flower's `LocalDpMod`.

``fedveil verify examples/verify/flower_mod.py:mechanism --claim "eps=1 delta=1e-5 replace-one client total local"``.
`small_sensitivity` is the same with the sensitivity that a public tutorial sets beside a clip of 1.
"""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

LEAST = 1e-9  # Flower's clipping divides by the length of an update: one of length 0 raises


def mechanism(data_sets, seed):
    """Updates of length 1, with noise for two of them that point in opposite directions; the mod draws it freshly."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
    return [sent(rows, node, mod) for node, rows in enumerate(data_sets)]


def small_sensitivity(data_sets, seed):
    """A clip of 1 beside a sensitivity of 1e-4."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=1.0, delta=1e-5)
    return [sent(rows, node, mod) for node, rows in enumerate(data_sets)]


def sent(rows, node, mod):
    """Arrays that leave a client: the mod runs around its training."""
    context = Context(1, node, {"partition-id": node}, RecordDict(), {})
    model = ArrayRecord([np.zeros(rows.shape[1], np.float32)])
    asked = Message(RecordDict({"arrays": model}), dst_node_id=node, message_type="train")

    def train(message, context):
        """Your client's function; here the model moves by the sum of the rows."""
        [layer] = message.content["arrays"].to_numpy_ndarrays()
        step = np.nan_to_num(rows, posinf=0, neginf=0).clip(-1e6, 1e6).sum(axis=0) + LEAST
        trained = ArrayRecord([layer + step.astype(layer.dtype)])
        return Message(RecordDict({"arrays": trained}), reply_to=message)

    return mod(asked, context, train).content["arrays"].to_numpy_ndarrays()
