"""A client of scikit-learn's: parameters in, parameters out."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedveil as fv
from fedveil.flower import privacy_mod

from .task import (
    create_log_reg_and_instantiate_parameters,
    fit,
    get_model_parameters,
    load_data,
    set_model_params,
)

layout = fv.Layout.from_shapes({"0": (10, 64), "1": (10,)}, torch.float64)
method = fv.GlobalDP(epsilon=8, rounds=3, clip=4.0)
app = ClientApp(mods=[privacy_mod(layout, method)])


@app.train()
def train(msg: Message, context: Context):
    model = create_log_reg_and_instantiate_parameters(0.01, context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    x, y, _, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    fit(model, x, y)
    arrays = ArrayRecord(get_model_parameters(model))
    metrics = MetricRecord({"num-examples": len(x), "train_accuracy": float(model.score(x, y))})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
