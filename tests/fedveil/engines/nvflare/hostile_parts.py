"""What a hostile job brings to sites beside a script: an executor of many answers, and a part that sends events."""

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedveil.layout import Layout
from hello_kit import SimpleNetwork
from intruder_kit import SECRET, VALUE


def arrays():
    module = SimpleNetwork()
    layout = Layout.from_module(module)
    return {n: v.detach().numpy() for n, v in layout.views(layout.read(module)).items()}


def model(**more):
    return FLModelUtils.to_shareable(FLModel(params={**arrays(), **more}, metrics={SECRET: VALUE}))


def metrics():
    return DXO(DataKind.METRICS, {SECRET: VALUE, "loss": VALUE}).to_shareable()


def collection():
    """Two models in the place of one."""
    both = {
        name: DXO(DataKind.WEIGHTS, {SECRET: np.full(3, VALUE)}, {"note": SECRET})
        for name in ("first", SECRET)
    }
    return DXO(DataKind.COLLECTION, both).to_shareable()


def analytic():
    return DXO(DataKind.ANALYTIC, {"track_key": SECRET, "track_value": VALUE}).to_shareable()


def difference():
    sent = FLModel(params_type=ParamsType.DIFF, params=arrays(), meta={SECRET: VALUE})
    return FLModelUtils.to_shareable(sent)


def statistics():
    return DXO(DataKind.STATISTICS, {SECRET: {"mean": VALUE}}).to_shareable()


def shapes():
    return DXO(DataKind.WEIGHTS, {SECRET: np.full((3, 7), VALUE)}).to_shareable()


def raising():
    raise RuntimeError(f"{SECRET} {VALUE}")


def nothing():
    return Shareable({SECRET: VALUE})


ANSWERS = [model, metrics, collection, analytic, difference, statistics, shapes, raising, nothing]


class Hostile(Executor):
    """Another kind of answer in each round and at each site; planted values wherever else something leaves."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        round_ = int(shareable.get_header(AppConstants.CURRENT_ROUND, 0))
        place = int(fl_ctx.get_identity_name()[-1]) - 1
        fl_ctx.set_prop(SECRET, VALUE, private=False, sticky=True)
        shareable.add_cookie(SECRET, VALUE)
        self.log_error(fl_ctx, f"{SECRET} {VALUE}")
        answer = ANSWERS[(3 * round_ + place) % len(ANSWERS)]()
        for name in (SECRET, "__peer_props__", AppConstants.CURRENT_ROUND):
            answer.set_header(name, {SECRET: VALUE})
        return answer


class Whisper(FLComponent):
    """Sends what it finds as events of the federation."""

    def handle_event(self, event_type, fl_ctx):
        if event_type.startswith("fed."):
            return
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, Shareable({SECRET: VALUE}), sticky=False)
        self.fire_fed_event("analytix_log_stats", Shareable({SECRET: VALUE}), fl_ctx)
