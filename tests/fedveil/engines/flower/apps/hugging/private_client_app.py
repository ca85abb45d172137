"""A client that fine-tunes an adapter of a model of texts."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

import fedveil as fv
from fedveil.flower import privacy_mod

from .task import get_model, load_data
from .task import train as train_fn

layout = fv.Layout.from_module(get_model())
method = fv.GlobalDP(epsilon=8, rounds=3, clip=1.0)
app = ClientApp(mods=[privacy_mod(layout, method)])


@app.train()
def train(msg: Message, context: Context):
    net = get_model()
    set_peft_model_state_dict(net, msg.content["arrays"].to_torch_state_dict())
    trainloader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    train_fn(net, trainloader, epochs=context.run_config["local-epochs"], device="cpu")
    metrics = MetricRecord({"num-examples": len(trainloader.dataset)})
    model_record = ArrayRecord(get_peft_model_state_dict(net))
    return Message(RecordDict({"arrays": model_record, "metrics": metrics}), reply_to=msg)
