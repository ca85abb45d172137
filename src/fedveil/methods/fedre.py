"""FedRE: layer-wise local noise steered by privacy-sensitive regions, and perturbation-aware aggregation.

Source: the FedRE paper, equations 3 to 11. Trust model: untrusted server. A client scores each layer by how much its
gradient depends on the sensitive region of the client's images. Layers with a higher score get a smaller budget. The
client clips each layer of its update to C_l and adds N(0, C_l^2 sigma_l^2). It releases the model after local training.
So the update takes the place of the paper's -eta * gradient, and the update of a client is clipped, not a single
sample. It is a heuristic, because the split of the budget is computed from private data. The server weighs clients
layer by layer by scores of the received models on public data. By default these weights sum to 1; printed are 1 / (K
alpha), which `normalised = False` follows.

The paper calls C_l the largest contribution of a training sample, and takes equation 9 from its reference [33]. The
code of that reference uses a sensitivity of 2 C_l / |D_k|, with |D_k| the client's number of samples. `sensitivity =
"sample"` follows that code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedveil.accounting import Draw, Release, Spend, count_of, model_of, nothing, of_round
from fedveil.accounting.bounds import GDP, Heuristic
from fedveil.accounting.guarantee import LIVENESS
from fedveil.aggregation import NoState, perturbation_weights
from fedveil.calibration import LayerSensitivity
from fedveil.checks import Delta, Epsilon, Positive
from fedveil.clipping import clip, require_bound
from fedveil.errors import FieldError
from fedveil.gdp import mu_of_epsilon
from fedveil.layout import Layout
from fedveil.mechanisms import GaussianNoise, Source, noised
from fedveil.methods.contract import ClientDefaults, ServerDefaults, noise_figures
from fedveil.methods.facts import Broadcast, ClientFacts, Combined, Protected, Releases, ServerFacts
from fedveil.methods.replies import stack_models


@dataclass(frozen=True)
class LastScores:
    """State of a client: its last private layer scores, float64 [L], for rounds without new scores."""

    scores: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class FedRE(ClientDefaults):
    """Client side of FedRE.

    Parameters
    ----------
    epsilon, delta : float
        The paper's totals over layers and rounds. They determine the noise of each layer. With private scores they are
        no guarantee.
    clip : float or mapping of str to float
        C_l: one for all layers, or one for each (layers are modules).
    scores : {"private", "public"}
        Source of the scores: the client's own sensitive regions (the paper), or the server's public data. "public" is
        sound: mu is split by 1/S_l, the sensitivity is 2 C_l (any two inputs), and (epsilon, delta) is the total.
    split : {"scores", "uniform", "size"}
        "uniform" gives every layer the same share (the paper's baseline LDP-Fed). "size" splits by the layers' numbers
        of parameters: it has the shortest noise at the sound guarantee, and needs scores = "public". Neither uses the
        scores themselves.
    sensitivity : {"client", "sample"}
        Factor of the printed sigma_l. "client": C_l, the bound of a client's whole update. "sample": 2 C_l / |D_k|,
        for one of |D_k| examples. It bounds only a single step, and is a heuristic for private scores.
    noise_to_clip : float, optional
        Expected length of a round's noise over the length of all clips together. It replaces epsilon, for comparisons
        at equal noise power, and is a heuristic.

    Examples
    --------
    >>> side = fv.FedRE()
    >>> side.epsilon, side.clip, side.scores
    (50.0, 0.2, 'private')
    >>> fv.FedRE(scores="public").trust
    'local'
    """

    epsilon: Epsilon = 50.0
    delta: Delta = 1e-5
    clip: float | Mapping[str, float] = 0.2
    scores: Literal["private", "public"] = "private"
    split: Literal["scores", "uniform", "size"] = "scores"
    sensitivity: Literal["client", "sample"] = "client"
    noise_to_clip: Positive | None = None

    composed: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Scores that the split needs: private or public layer scores, or none."""
        if self.split != "scores":
            return frozenset()
        return frozenset({"layer_scores" if self.scores == "private" else "public_layer_scores"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split == "size" and self.scores != "public":
            accepted = "needs scores = 'public': it is the shortest noise at the sound guarantee"
            raise FieldError("split", self.split, accepted)
        if self.sensitivity == "sample" and (
            self.scores == "public" or self.noise_to_clip is not None
        ):
            accepted = (
                "reads the printed noise: leave noise_to_clip out and set scores to 'private'"
            )
            raise FieldError("sensitivity", self.sensitivity, accepted)
        if self.clip == {}:
            raise FieldError(
                "clip", self.clip, "must have a bound for each layer, or be one number for all"
            )
        bounds = self.clip.values() if isinstance(self.clip, Mapping) else (self.clip,)
        for bound in bounds:
            require_bound("clip", bound)

    def init(self) -> LastScores:  # type: ignore[override]
        return LastScores()

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return figures of the median client's noise, compared with the root of the sum of C_l^2."""
        squares = [bound * bound for bound in self._bounds(layout).values()]
        return noise_figures(scales, layout, math.sqrt(sum(squares)))

    def quote(self, broadcast: Broadcast, state: LastScores) -> Spend:
        """Return the cost of taking part: heuristic for private scores, exact for public ones."""
        return self._spend((), broadcast.public.rounds)

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: LastScores,
        source: Source,
    ) -> Protected:
        """Clip and noise each layer of the update; everything else stays on the client.

        If the split depends on private scores, a failed client splits the budget evenly instead. In a round without new
        scores (`Scoring.every`) a client uses its last ones.
        """
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        groups, rounds = facts.layout.groups("module"), facts.broadcast.public.rounds
        bounds = self._bounds(facts.layout)
        scores = self._scores(facts, list(groups), state)
        update = clip(model - facts.start, bounds, facts.layout)
        multipliers = self._multipliers(scores, rounds)
        part = self._part(releases, facts)
        layers = zip(groups, multipliers, strict=True)
        deviations = tuple(bounds[name] * multiplier * part for name, multiplier in layers)
        _require_usable(
            "privacy.epsilon",
            self.epsilon,
            deviations,
            update.dtype,
            rises=False,
        )
        if self.noise_to_clip is not None:
            factor = self.noise_to_clip / self.noise([deviations], facts.layout)["noise_to_clip"]
            deviations = tuple(factor * deviation for deviation in deviations)
            _require_usable(
                "privacy.noise_to_clip",
                self.noise_to_clip,
                deviations,
                update.dtype,
                rises=True,
            )
        for slices, deviation in zip(groups.values(), deviations, strict=True):
            for s in slices:
                update[s] = noised(update[s], GaussianNoise(deviation), source)
        own = (
            state
            if facts.layer_scores is None
            else LastScores(torch.tensor(scores, dtype=torch.float64))
        )
        spend = self._spend(deviations, rounds)
        if spend.guarantee.proven:
            spend = replace(spend, draws=_draws([bounds[name] for name in groups], deviations))
        return Protected((Release("model", facts.start + update),), spend, own)

    def _part(self, releases: Releases, facts: ClientFacts) -> float:
        """Return the sensitivity in units of C_l: 1, or 2 / |D_k|."""
        if self.sensitivity == "client" or facts.failed:
            return 1.0
        examples = count_of(releases)
        if examples is None or examples < 1:
            accepted = "needs the client's number of examples beside its model: set it to 'client', or send the count"
            raise FieldError("sensitivity", self.sensitivity, accepted)
        return 2 / examples

    def _bounds(self, layout: Layout) -> Mapping[str, float]:
        """Return C_l of every layer."""
        layers = layout.groups("module")
        if not isinstance(self.clip, Mapping):
            return dict.fromkeys(layers, self.clip)
        if layout.grouping_of("privacy.clip", self.clip) != "module":
            accepted = f"names arrays: give a bound for each layer, {', '.join(layers)}"
            raise FieldError("privacy.clip", sorted(self.clip), accepted)
        return self.clip

    def _scores(
        self,
        facts: ClientFacts,
        layers: list[str],
        state: LastScores,
    ) -> list[float]:
        if self.split == "uniform":
            return [1.0] * len(layers)
        if (
            self.split == "size"
        ):  # shares of mu grow with sqrt(C_l) and the fourth root of the layer's size n_l
            sizes = facts.layout.sizes("module")
            bounds = self._bounds(facts.layout)
            return [bounds[name] ** -0.5 * sizes[name] ** -0.25 for name in layers]
        if self.scores == "public":
            known = facts.broadcast.public.layer_scores
            if known is None or len(known) != len(layers):
                raise FieldError(
                    "public.layer_scores",
                    known,
                    f"the broadcast needs one score for each of {layers}",
                )
            return list(known)
        if facts.failed:
            return [1.0] * len(layers)
        if (
            facts.layer_scores is None
            and state.scores is not None
            and len(state.scores) == len(layers)
        ):
            return [float(score) for score in state.scores]
        if facts.layer_scores is None or list(facts.layer_scores) != layers:
            given = None if facts.layer_scores is None else list(facts.layer_scores)
            raise FieldError(
                "layer_scores", given, f"FedRE needs one score a layer, in this order: {layers}"
            )
        return list(facts.layer_scores.values())

    def _multipliers(self, scores: list[float], rounds: int) -> list[float]:
        """Return the deviation of each layer's noise over its C_l."""
        if self.scores == "private":
            return LayerSensitivity(self.epsilon, self.delta, 1.0, rounds).split(scores)["sigma"]
        # shares of mu are proportional to 1/S_l, and their squares add up to the round's mu^2
        shares = LayerSensitivity(1.0, self.delta, 1.0, rounds).split(scores)["epsilon"]
        length = math.sqrt(math.fsum(share**2 for share in shares))
        return [2 * length / (self._round_mu(rounds) * share) for share in shares]

    def _round_mu(self, rounds: int) -> float:
        return mu_of_epsilon(self.epsilon, self.delta) / math.sqrt(rounds)

    def _spend(self, deviations: tuple[float, ...], rounds: int) -> Spend:
        formal = self.scores == "public" and self.noise_to_clip is None
        reason = "the budget's split over layers is computed from private data"
        if self.noise_to_clip is not None:
            reason = "the noise is set by its ratio to the clip, not by a budget"
        elif self.sensitivity == "sample":
            reason = "2 C_l over the number of examples bounds one step of gradients that are clipped one by one"
        elif self.split == "uniform":
            reason = "the paper's noise is calibrated for C_l, and a replaced client changes a layer by up to 2 C_l"
        if formal:
            guarantee = of_round(GDP(self._round_mu(rounds)), "local", "replace-one", LIVENESS)
        else:
            guarantee = of_round(Heuristic(reason), "local", "replace-one")
        return Spend(guarantee=guarantee, mechanism="gaussian", scale=deviations)


def _draws(bounds: Sequence[float], deviations: Sequence[float]) -> tuple[Draw, ...]:
    """Return the draw of each layer's noise; replacing the client moves a layer by at most 2 C_l."""
    drawn = []
    for bound, sigma in zip(bounds, deviations, strict=True):
        drawn.append(
            Draw(
                unit="client",
                relation="replace-one",
                moved=2 * bound,
                noise=sigma,
            )
        )
    return tuple(drawn)


def _require_usable(
    field: str,
    value: float,
    deviations: Sequence[float],
    dtype: torch.dtype,
    rises: bool,
) -> None:
    """Refuse noise whose squared deviation over- or underflows in the model's number type.

    `rises` says whether the noise grows with the value of `field`; the refusal then advises a smaller or larger value.
    """
    limits = torch.finfo(dtype)
    least, most = math.sqrt(limits.tiny), math.sqrt(limits.max)
    for deviation in deviations:
        if least <= deviation <= most:
            continue
        short = deviation < least
        change = "raise" if short == rises else "lower"
        change_clip = "raise" if short else "lower"
        given = (
            f"gives a layer noise of deviation {deviation:.3g}, outside {least:.1e} to {most:.1e}"
        )
        raise FieldError(field, value, f"{given}: {change} it, or {change_clip} privacy.clip")


@dataclass(frozen=True, kw_only=True)
class PerturbationAware(ServerDefaults):
    """Server side of FedRE: the paper's perturbation-aware aggregation, PDA-PAM.

    Parameters
    ----------
    normalised : bool
        True: weights of K clients that sum to 1, proportional to 1/alpha (alpha: a client's score). False: the printed 1/(K alpha).
    weighting : {"scores", "equal"}
        "scores": weights from scores on public data. "equal": the plain mean without public data, FedRE's baseline.
    """

    normalised: bool = True
    weighting: Literal["scores", "equal"] = "scores"
    working_copies: ClassVar[int] = 4  # two of all updates, and one in float64

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Facts that the weights need: public scores of the received models, or nothing for equal weights."""
        return frozenset({"public_scores"} if self.weighting == "scores" else ())

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: NoState,
        source: Source,
    ) -> Combined:
        """Average the updates layer by layer, with weights from the public scores."""
        theta = facts.broadcast.models[0]
        updates = stack_models(replies) - theta
        groups = facts.layout.groups("module")
        equal = torch.zeros(len(updates), len(groups), dtype=torch.float64)
        scores = facts.public_scores if self.weighting == "scores" else equal
        if scores is None or tuple(scores.shape) != (len(updates), len(groups)):
            given = None if scores is None else tuple(scores.shape)
            raise FieldError(
                "public_scores", given, f"must be [n, L] = [{len(updates)}, {len(groups)}]"
            )
        weights = perturbation_weights(scores, self.normalised or self.weighting == "equal")
        step = torch.zeros_like(theta)
        for column, slices in enumerate(groups.values()):
            for s in slices:
                weighted = weights[:, column, None] * updates[:, s].to(torch.float64)
                step[s] = weighted.sum(0).to(step.dtype)
        report = {"clients": float(len(updates)), "largest_weight": float(weights.max())}
        return Combined((theta + step)[None], nothing("local"), state, report)
