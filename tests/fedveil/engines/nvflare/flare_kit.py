"""FLARE's own client runners and our controller in one process: its order of filters and its encoding, no network."""

import copy
from itertools import pairwise
from types import SimpleNamespace

import flare_needed  # noqa: F401
import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.f3.cellnet.registry import Registry
from nvflare.private.fed.client.client_engine_executor_spec import TaskAssignment
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter
from nvflare.private.privacy_manager import Scope
from sklearn.datasets import load_digits
from torch import nn

from fedveil.aggregation import AGGREGATORS
from fedveil.engines import Execution
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.learner import Learner
from fedveil.methods import build
from fedveil.nvflare import FedVeilController, PrivacyFilter, ReleaseFilter

SITES, ROUNDS, SEED, JOB = ["site-a", "site-b", "site-c"], 3, 11, "job-1"
MODEL = "flare_kit:Net"


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 6), nn.LeakyReLU(), nn.Linear(6, 10))


def digits(train=16):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    edges = [sum(train + j for j in range(i)) for i in range(len(SITES) + 1)]
    return [ClientData(x[a:b], y[a:b]) for a, b in pairwise(edges)]


def learner():
    model = Net()
    return Learner(model, Layout.from_module(model), LocalTraining(lr=0.1, batch_size=8))


class Trainer(Executor):
    """Trains as a client of the embedded engine does; what it sends beside the model is `extra`'s affair."""

    def __init__(self, partition, data=None, extra=None):
        super().__init__()
        self.partition, self.data, self.extra, self.trained = (
            partition,
            data or digits()[partition],
            extra,
            0,
        )

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        self.trained += 1
        received = FLModelUtils.from_shareable(shareable)
        one = learner()
        start = one.layout.flatten({n: torch.as_tensor(a) for n, a in received.params.items()})[
            None
        ]
        [learned] = one.learn(
            start,
            [self.data],
            [(SEED, received.current_round + 1, self.partition)],
            frozenset(),
            [],
        )
        if isinstance(learned, Exception):
            raise learned
        params = {n: v.numpy().copy() for n, v in one.layout.views(learned.trained.model).items()}
        metrics = {"num-examples": learned.trained.examples, "train_loss": learned.trained.loss}
        result = FLModelUtils.to_shareable(FLModel(params=params, metrics=metrics))
        return result if self.extra is None else self.extra(result, shareable, fl_ctx)


class Engine:
    """What ClientRunner and Controller ask of FLARE's engine."""

    def __init__(self, name, folder, components=()):
        self.components, self.folder, self.panics = dict(components), folder / name, []
        self.manager = FLContextManager(self, name, JOB)
        self.clients = [Client(site, f"token-{site}") for site in reversed(SITES)]

    def register_aux_message_handler(self, topic, message_handle_func):
        pass

    def fire_event(self, event_type, fl_ctx):
        if "fatal" in event_type or "panic" in event_type:
            self.panics.append(fl_ctx.get_prop(FLContextKey.EVENT_DATA))

    def get_all_components(self):
        return self.components

    def get_workspace(self):
        return SimpleNamespace(get_run_dir=lambda job: str(self.folder / job))

    def get_cell(self):
        return SimpleNamespace(core_cell=SimpleNamespace(req_reg=Registry()))

    def get_clients(self):
        return self.clients


class Site:
    """One client: FLARE's ClientRunner with our filters in the site's scope, or in the job's configuration."""

    def __init__(self, name, folder, executor, filters, scoped=True, behind=(), components=()):
        self.engine, self.executor, self.sent, self.context = (
            Engine(name, folder, components),
            executor,
            [],
            None,
        )
        first, last = [f for f in filters if isinstance(f, PrivacyFilter)], [*filters, *behind]
        last = [f for f in last if f not in first]
        self.scope, router = Scope(), TaskRouter()
        router.add_executor(["*"], executor)
        job = ({}, {}) if scoped else ({"train/in": first}, {"train/out": last})
        if scoped:
            for f in first:
                self.scope.add_task_data_filter(f, "in")
            for f in last:
                self.scope.add_task_result_filter(f, "out")
        config = ClientRunnerConfig(router, *job)
        self.runner = ClientRunner(
            {"client_name": name, "fqsn": name, "is_leaf": True}, config, JOB, self.engine
        )
        self.name = name

    def do(self, task, data):
        """What leaves the site, in FLARE's own encoding there and back."""
        fl_ctx, peer = self.engine.manager.new_context(), FLContext()
        fl_ctx.set_prop(FLContextKey.RUNNER, self.runner, private=True)
        fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, self.scope, private=True)
        peer.put("__run_num__", self.runner.job_id, private=False, sticky=True)
        fl_ctx.set_peer_context(peer)
        data = Shareable.from_bytes(data.to_bytes())
        data.add_cookie("task", "cookie of the server")
        data.add_cookie("list", [])
        fl_ctx.set_prop("public", {}, private=False, sticky=False)
        reply = self.runner._process_task(TaskAssignment(task, "task-1", data), fl_ctx)
        self.context = fl_ctx
        self.sent.append(reply)
        return Shareable.from_bytes(copy.deepcopy(reply).to_bytes())


class Network(WFCommSpec):
    """Sends a task to the sites, one after another, last ones first."""

    def __init__(self, sites):
        self.sites = {site.name: site for site in sites}

    def broadcast_and_wait(self, task, fl_ctx, targets, min_responses, wait, abort_signal):
        for name in reversed(targets):
            if name in self.sites:
                client_task = ClientTask(Client(name, "token"), task)
                client_task.result = self.sites[name].do(task.name, task.data)
                task.result_received_cb(client_task, fl_ctx)


def run(folder, sites, **arguments):
    """The controller, after it has run over the sites."""
    given = {"model": MODEL, "method": "vanilla", "rounds": ROUNDS, "seed": SEED, **arguments}
    controller, engine = FedVeilController(**given), Engine("server", folder)
    controller.set_communicator(Network(sites))
    controller.control_flow(Signal(), engine.manager.new_context())
    controller.engine = engine
    return controller


def sites_of(folder, method, parameters=None, executors=None, **arguments):
    given = {"model": MODEL, "method": method, "parameters": parameters, "seed": SEED, **arguments}
    executors = executors or [Trainer(i) for i in range(len(SITES))]
    return [
        Site(name, folder, executor, [PrivacyFilter(**given), ReleaseFilter()])
        for name, executor in zip(SITES, executors, strict=True)
    ]


def embedded(method, parameters=None, aggregator=None, **changes):
    rule = None if aggregator is None else AGGREGATORS[aggregator]()
    return {
        "model": Net,
        "clients": digits(),
        "method": build(method, rule, **(parameters or {})),
        "seed": SEED,
        "local": LocalTraining(lr=0.1, batch_size=8),
        "execution": Execution(learner=learner()),
        **changes,
    }
