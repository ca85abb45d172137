"""Federations as scikit-learn estimators: ``fit(X, y, groups=hospital, person=patient)``."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fedveil.data.labels import natural_clients, people_of
from fedveil.engines.assembly import AnyMethod, resolve_method
from fedveil.engines.federation import Federation
from fedveil.engines.options import Budgets, PerClient
from fedveil.errors import FieldError, kind_of, require_a
from fedveil.learning import ClientData, LocalTraining, build_model
from fedveil.learning.losses import predict as outputs_under
from fedveil.mechanisms import Source
from fedveil.methods import Method
from fedveil.methods.record import RecordDP

Build = Callable[[int, int], nn.Module]


class _Federated(BaseEstimator):  # type: ignore[misc]
    """Common base of classifier and regressor: parameters, clients, the run, and its promise."""

    def __init__(
        self,
        *,
        model: str | Build = "logistic",
        method: AnyMethod | PerClient | None = None,
        local: LocalTraining | None = None,
        rounds: int = 20,
        ranges: Sequence[tuple[float, float]] | None = None,
        delta: float = 1e-5,
        clients_per_round: int | None = None,
        seed: int = 0,
        source: Source | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.model, self.method, self.local, self.rounds = model, method, local, rounds
        self.ranges, self.delta, self.clients_per_round = ranges, delta, clients_per_round
        self.seed, self.source, self.budgets = seed, source, budgets

    @property
    def promise_(self) -> str:
        """Promise of the run in words: unit, relation, trust and total epsilon."""
        check_is_fitted(self, "history_")
        return str(self.history_.guarantee.describe(self.delta))

    def _run(
        self,
        x: NDArray[Any],
        y: Tensor,
        outputs: int,
        groups: Any,
        person: Any,
        loss: Any,
    ) -> Self:
        local = self.local if self.local is not None else LocalTraining(loss=loss)
        require_a("local", local, LocalTraining, "must be LocalTraining(...)")
        if self._method().server.hypotheses != 1:
            accepted = (
                "trains several models, of which each site uses one: use Federation, and choose"
            )
            raise FieldError("method", self._method().name, accepted)
        examples = torch.from_numpy(self._scaled(x))
        module = self._network(examples.shape[1], outputs)
        clients, names = self._clients(examples, y, groups, person)
        federation = Federation(
            model=module,
            clients=clients,
            method=self.method,
            local=local,
            seed=self.seed,
            source=self.source,
            clients_per_round=self.clients_per_round,
            budgets=self.budgets,
        )
        self.history_ = federation.run(self.rounds)
        self.guarantee_, self.clients_ = self.history_.guarantee, names
        self._layout, self._vector = federation.layout, self.history_.models[0]
        module.load_state_dict({**module.state_dict(), **self.history_.state_dicts[0]})
        self.model_ = module
        self.n_iter_ = len(self.history_.rounds)
        return self

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        if isinstance(self.model, str):
            return build_model(
                self.model,
                input_shape=(inputs,),
                outputs=outputs,
                seed=self.seed,
            )
        if isinstance(self.model, nn.Module):
            return deepcopy(self.model)
        if not callable(self.model):
            accepted = "must be the name of a network, a torch.nn.Module, or a function of inputs and outputs"
            raise FieldError("model", kind_of(self.model), accepted)
        return self.model(inputs, outputs)

    def _scaled(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Scale columns to 0 to 1 by their declared ranges, as float32; without ranges they are not scaled."""
        wide = np.asarray(x, dtype=np.float64)
        if self.ranges is not None:
            if len(self.ranges) != wide.shape[1]:
                accepted = f"must be a pair (low, high) for each of the {wide.shape[1]} columns"
                raise FieldError("ranges", len(self.ranges), accepted)
            low, high = np.asarray(self.ranges, dtype=np.float64).T
            if not (low < high).all():
                raise FieldError("ranges", list(self.ranges), "each must have its lower end first")
            outside = (wide < low) | (wide > high)
            for column in np.flatnonzero(outside.any(0))[:1].tolist():
                accepted = f"is outside the declared range {tuple(self.ranges[column])}: widen it, or correct the row"
                raise FieldError(f"X[:, {column}]", "a value", accepted)
            wide = (wide - low) / (high - low)
        if wide.size and np.abs(wide).max() > np.finfo(np.float32).max:
            raise FieldError(
                "X", "a value", "is too large for float32: divide the column by a constant"
            )
        return np.ascontiguousarray(wide, dtype=np.float32)

    def _clients(
        self,
        x: Tensor,
        y: Tensor,
        groups: Any,
        person: Any,
    ) -> tuple[list[ClientData], tuple[str, ...]]:
        """Make one client for each group, sorted by name; without groups one client has all rows."""
        owner = torch.zeros(len(x), dtype=torch.int64)
        names: tuple[str, ...] = ("all",)
        if groups is not None:
            owner, names = natural_clients("groups", np.asarray(groups), len(x))
        people = None if person is None else people_of("person", np.asarray(person), len(x))
        side = self._method().client
        if isinstance(side, RecordDP) and side.unit == "person":
            if people is None:
                accepted = "the method protects persons: say whose each row is, fit(X, y, groups=..., person=patient)"
                raise FieldError("person", None, accepted)
            self._require_silos(owner, people, side.silos_per_person)
        made = []
        for number, name in enumerate(names):
            rows = (owner == number).nonzero().reshape(-1)
            whose = None if people is None else people[rows]
            made.append(ClientData(x[rows], y[rows], name=name, person=whose))
        return made, names

    @staticmethod
    def _require_silos(owner: Tensor, people: Tensor, declared: int) -> None:
        """Refuse data in which a person is at more hospitals than the promise covers."""
        pairs = torch.unique(torch.stack([people, owner], 1), dim=0)
        most = int(torch.bincount(pairs[:, 0]).max())
        if most > declared:
            accepted = (
                f"some person is in {most} groups: raise it, RecordDP(silos_per_person={most}, ...)"
            )
            raise FieldError("silos_per_person", declared, accepted)

    def _method(self) -> Method:
        each = self.method if isinstance(self.method, PerClient) else PerClient(self.method)
        return resolve_method(each.method)

    def _outputs(self, x: Any) -> Tensor:
        check_is_fitted(self, "history_")
        rows = validate_data(self, x, reset=False, dtype=np.float64)
        inputs = torch.from_numpy(self._scaled(rows))
        return outputs_under(self.model_, self._layout, self._vector, inputs).double()


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Scikit-learn classifier that trains over several hospitals, with a privacy method.

    Parameters
    ----------
    model : str, callable or torch.nn.Module
        Name in `fedveil.learning.MODELS`, function ``(inputs, outputs) -> network``, or a network.
    method : Method or what `Federation` takes as one, optional
        Method that protects the hospitals, their records or their patients. Default: no protection.
    local : LocalTraining, optional
        Local training of a hospital in a round.
    rounds : int
        Number of rounds.
    ranges : sequence of pairs, optional
        (low, high) of each column, declared without looking at the data; columns are scaled by them to 0 to 1. By
        default columns are not scaled. A scaler fitted on rows of several hospitals would be a release without a
        promise.
    classes : sequence, optional
        All classes. A method with a promise needs them, because classes found in the labels could reveal a single
        record.
    delta : float
        Delta of the epsilon in `promise_`.
    clients_per_round, seed, source, budgets
        Arguments of `Federation`.

    Attributes
    ----------
    history_ : History
        Rounds, promises and released model of the run.
    guarantee_ : Guarantee
        Guarantee of the whole run; `promise_` has it in words.
    model_ : torch.nn.Module
        Network with the released weights.
    classes_, clients_ : ndarray, tuple of str
        Classes in order, and names of the groups.

    Examples
    --------
    >>> hospital = ["north", "south", "east"] * 40
    >>> private = fv.GlobalDP(noise_multiplier=2.0, clip=1.0)
    >>> learner = fv.FederatedClassifier(method=private, rounds=2, classes=[0, 1])
    >>> learner = learner.fit(x.numpy(), y.numpy(), groups=hospital)
    >>> learner.promise_
    'formal eps=2.944 at delta=1e-05 (zero-out, client, central, total)'
    >>> learner.predict_proba(x.numpy()[:2]).shape
    (2, 2)
    """

    def __init__(
        self,
        *,
        model: str | Build = "logistic",
        method: AnyMethod | PerClient | None = None,
        local: LocalTraining | None = None,
        rounds: int = 20,
        ranges: Sequence[tuple[float, float]] | None = None,
        classes: Sequence[Any] | None = None,
        delta: float = 1e-5,
        clients_per_round: int | None = None,
        seed: int = 0,
        source: Source | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        super().__init__(
            model=model,
            method=method,
            local=local,
            rounds=rounds,
            ranges=ranges,
            delta=delta,
            clients_per_round=clients_per_round,
            seed=seed,
            source=source,
            budgets=budgets,
        )
        self.classes = classes

    def fit(self, X: Any, y: Any, groups: Any = None, person: Any = None) -> Self:
        """Train over hospitals that do not share their rows.

        Parameters
        ----------
        X : array
            [N, F], numbers.
        y : array
            [N], classes.
        groups : sequence, optional
            [N], hospital of each row; without it one client holds all rows.
        person : sequence, optional
            [N], person of each row, for methods that protect persons.
        """
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        found = np.unique(labels)
        if self.classes is None and self._method().may_promise:
            accepted = "were counted off the labels, and may tell whether one record has the last class: give classes=[...]"
            raise FieldError("classes", f"{len(found)} found", accepted)
        self.classes_ = found if self.classes is None else np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            accepted = "there must be at least two classes to tell apart"
            raise FieldError("classes", f"{len(self.classes_)} class", accepted)
        unknown = np.setdiff1d(found, self.classes_)
        if len(unknown):
            accepted = f"is none of the declared classes {self.classes_.tolist()[:20]}"
            raise FieldError("y", unknown.tolist()[:1], accepted)
        codes = torch.from_numpy(np.searchsorted(self.classes_, labels).astype(np.int64))
        return self._run(x, codes, len(self.classes_), groups, person, "cross_entropy")

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probabilities [N, C] of the classes, in the order of `classes_`."""
        outputs = self._outputs(X)
        if outputs.dim() != 2 or outputs.shape[1] != len(self.classes_):
            accepted = (
                f"the network must give one score for each of the {len(self.classes_)} classes"
            )
            raise FieldError("model", tuple(outputs.shape[1:]), accepted)
        return np.asarray(outputs.softmax(1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the likeliest class of each row."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Scikit-learn regressor that trains over several hospitals, with a privacy method.

    Parameters
    ----------
    model, method, local, rounds, ranges, delta
        Parameters of `FederatedClassifier`. Local training needs a loss for regression; the default is ``"mse"``.
    target_range : pair, optional
        (low, high) of the target, declared without looking at the data; the target is then scaled to 0 to 1.
    clients_per_round, seed, source, budgets
        Arguments of `Federation`.

    Attributes
    ----------
    history_, guarantee_, model_, clients_
        Attributes of `FederatedClassifier`.

    Examples
    --------
    >>> target = (x @ torch.tensor([1.0, 0.5, 0.0, 0.0])).numpy()
    >>> learner = fv.FederatedRegressor(rounds=20).fit(x.numpy(), target, groups=[0, 1, 2] * 40)
    >>> round(learner.score(x.numpy(), target), 2)
    1.0
    """

    def __init__(
        self,
        *,
        model: str | Build = "logistic",
        method: AnyMethod | PerClient | None = None,
        local: LocalTraining | None = None,
        rounds: int = 20,
        ranges: Sequence[tuple[float, float]] | None = None,
        target_range: tuple[float, float] | None = None,
        delta: float = 1e-5,
        clients_per_round: int | None = None,
        seed: int = 0,
        source: Source | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        super().__init__(
            model=model,
            method=method,
            local=local,
            rounds=rounds,
            ranges=ranges,
            delta=delta,
            clients_per_round=clients_per_round,
            seed=seed,
            source=source,
            budgets=budgets,
        )
        self.target_range = target_range

    def fit(self, X: Any, y: Any, groups: Any = None, person: Any = None) -> Self:
        """Train over hospitals that do not share their rows; `FederatedClassifier.fit` has the parameters."""
        x, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        low, high = self._ends()
        scaled = (np.asarray(targets, dtype=np.float64) - low) / (high - low)
        if self.target_range is not None and ((scaled < 0) | (scaled > 1)).any():
            raise FieldError(
                "y",
                "a value",
                f"is outside the declared target_range ({low:g}, {high:g}): widen it",
            )
        outputs = 1 if scaled.ndim == 1 else scaled.shape[1]
        return self._run(
            x,
            torch.from_numpy(scaled.astype(np.float32)),
            outputs,
            groups,
            person,
            "mse",
        )

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict the number for each row [N], in the target's units."""
        outputs, (low, high) = self._outputs(X).numpy(), self._ends()
        values = outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
        return np.asarray(low + (high - low) * values)

    def _ends(self) -> tuple[float, float]:
        if self.target_range is None:
            return 0.0, 1.0
        low, high = map(float, self.target_range)
        if not low < high:
            raise FieldError("target_range", self.target_range, "must be (low, high)")
        return low, high
