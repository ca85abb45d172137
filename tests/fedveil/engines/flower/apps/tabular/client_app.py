"""A client of scikit-learn's: parameters in, parameters out."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import (
    create_log_reg_and_instantiate_parameters,
    fit,
    get_model_parameters,
    load_data,
    set_model_params,
)

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = create_log_reg_and_instantiate_parameters(0.01, context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    x, y, _, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    fit(model, x, y)
    arrays = ArrayRecord(get_model_parameters(model))
    metrics = MetricRecord({"num-examples": len(x), "train_accuracy": float(model.score(x, y))})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
