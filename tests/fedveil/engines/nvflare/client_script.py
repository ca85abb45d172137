"""Training code for FLARE's Client API: what `flare_kit.Trainer` does, as a script."""

import nvflare.client as flare

from flare_kit import SEED, SITES, digits, learner

flare.init()
one = learner()
while flare.is_running():
    received = flare.receive()
    partition = SITES.index(flare.get_site_name())
    one.model.load_state_dict(received.params)
    key = (SEED, received.current_round + 1, partition)
    [learned] = one.learn(
        one.layout.read(one.model)[None], [digits()[partition]], [key], frozenset(), []
    )
    one.model.load_state_dict(one.layout.unflatten(learned.trained.model))
    metrics = {"num-examples": learned.trained.examples, "train_loss": learned.trained.loss}
    flare.send(flare.FLModel(params=one.model.state_dict(), metrics=metrics))
