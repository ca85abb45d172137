"""Score each canary by what left every site in a run with many canaries.

Two runs with known coins are made first: all canaries in, and all out. The difference of a site's messages between them
is the direction in which its canary moves them. In the judged runs, scores are log-likelihood ratios of least squares
on these directions. A bad direction makes a bound small, and never too large, as the coins of judged runs are fresh.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import scipy.linalg

from fedveil_lab.verify.aims import Floats

TEXT = "#text"  # ends the name of a word, of which length and check sum are kept
EXACT = 1e-9  # deviation, over the largest number, of what never varies
RIDGE = 1e-9
APART = 0.5  # share of a direction's length that no other taken direction explains


@dataclass(frozen=True)
class SiteTurn:
    """One exchange with a site: what it was sent, and what it answered.

    Attributes
    ----------
    sent : dict of str to array
        Arrays and numbers sent to the site, by path.
    left : dict of str to array
        Arrays and numbers that left the site before the next message to it, by path.
    """

    sent: Mapping[str, Floats]
    left: Mapping[str, Floats]


@dataclass(frozen=True)
class Transcript:
    """Messages of one run, by site.

    Attributes
    ----------
    sites : dict of str to list of SiteTurn
        Exchanges of each site, in order.
    final : dict of str to array
        Model that the server keeps at the end, by layer.
    said : str
        Text that the run printed.
    """

    sites: Mapping[str, Sequence[SiteTurn]]
    final: Mapping[str, Floats] = field(default_factory=dict)
    said: str = ""


def tail(name: str) -> str:
    """Return the last part of a path: a layer's name."""
    return name.rpartition("/")[2]


def arrays_by_tail(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Arrays by the last part of their path; of equal names the first one is kept."""
    found: dict[str, Floats] = {}
    for name, value in values.items():
        if not name.endswith(TEXT) and value.size > 0:
            found.setdefault(tail(name), value)
    return found


def answers_whole_models(turns: Sequence[SiteTurn]) -> bool:
    """Whether a site answers whole models rather than differences: its answers lie nearer to what it was sent than to 0."""
    near, far = 0.0, 0.0
    for turn in turns:
        sent = arrays_by_tail(turn.sent)
        for name, value in arrays_by_tail(turn.left).items():
            if name in sent and sent[name].shape == value.shape and value.ndim > 0:
                near += float(np.abs(value - sent[name]).sum())
                far += float(np.abs(value).sum())
    return near < far


def contributions(turn: SiteTurn, whole: bool) -> dict[str, Floats]:
    """Return what a turn contributes, by path: answers, or their differences to what was sent if whole models are answered."""
    sent = arrays_by_tail(turn.sent) if whole else {}
    found = {}
    for name, value in turn.left.items():
        if name.endswith(TEXT):
            continue
        base = sent.get(tail(name))
        same = base is not None and base.shape == value.shape and value.ndim > 0
        found[name] = value - base if same and base is not None else value
    return found


def flat_site(turns: Sequence[SiteTurn], whole: bool) -> dict[str, Floats]:
    """Collect all that left a site in a run, by turn and path, each as an array [numbers]."""
    found = {}
    for number, turn in enumerate(turns, 1):
        for name, value in contributions(turn, whole).items():
            found[f"{number}: {name}"] = np.asarray(value, dtype=np.float64).reshape(-1)
    return found


@dataclass(frozen=True)
class Fitted:
    """Directions of canaries, fitted on two runs with known coins.

    Attributes
    ----------
    names : tuple of str
        Names of the numbers that every site sent in both runs with the same shape.
    sizes : tuple of int
        Count of numbers of each name.
    middle, deviation : array
        Mean and standard deviation over sites without canaries, [d].
    directions : array
        Directions [canaries, d], in units of the deviation.
    whole : bool
        Whether sites answer whole models.
    bare : tuple of str
        Names of numbers that never varied without canaries, but did with each canary.
    model : dict of str to array
        Model that sites were first sent in the run without canaries.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    middle: Floats
    deviation: Floats
    directions: Floats
    whole: bool
    bare: tuple[str, ...]
    model: Mapping[str, Floats]


def fit_sites(all_in: Transcript, all_out: Transcript, one: bool) -> Fitted:
    """Fit the directions of canaries in what sites send, under local trust.

    Parameters
    ----------
    all_in, all_out : Transcript
        Run in which each site held its own canary, and run without canaries.
    one : bool
        Whether all sites held the same canary, so that the mean of their directions is taken.
    """
    whole = answers_whole_models(next(iter(all_out.sites.values())))
    first = [flat_site(turns, whole) for turns in all_in.sites.values()]
    second = [flat_site(turns, whole) for turns in all_out.sites.values()]
    names = tuple(common(*first, *second))
    x, y = stacked(first, names), stacked(second, names)
    middle, deviation = y.mean(axis=0), np.zeros(y.shape[1])
    bare, at = [], 0
    for name in names:
        part = slice(at, at := at + len(first[0][name]))
        own = y[:, part]
        spread = float(np.sqrt(own.var(axis=0, ddof=1).mean())) if own.size else 0.0
        least = EXACT * max(1.0, float(np.abs(own).max(initial=0.0)))
        each = np.where(own.std(axis=0) <= least, least, max(spread, least))
        deviation[part] = each
        moved = np.abs(x[:, part] - middle[part]) > 1e3 * least
        if spread <= least and own.size and moved.any(axis=1).all():
            bare.append(name)
    directions = (x - middle) / deviation
    if one:
        directions = directions.mean(axis=0, keepdims=True)
    sizes = tuple(len(first[0][name]) for name in names)
    return Fitted(
        names, sizes, middle, deviation, directions, whole, tuple(bare), first_model(all_out)
    )


def scores_of_sites(run: Transcript, sites: Sequence[str], fitted: Fitted) -> Floats:
    """Score the canaries that each site may hold by all that left the site; [sites, canaries].

    If the model equals that of the fitted runs, a site's answer differs by its canaries only. If it differs or was not seen, the
    common part of all sites is subtracted.
    """
    rows = np.stack([stacked_as(flat_site(run.sites[one], fitted.whole), fitted) for one in sites])
    rest = (rows - fitted.middle) / fitted.deviation
    turns = [name.partition(": ")[0] for name in fitted.names]
    begun = bool(fitted.model) and same_arrays(first_model(run), fitted.model)
    known = np.repeat([begun and turn == "1" for turn in turns], fitted.sizes)
    later = rest[:, ~known] - rest[:, ~known].mean(axis=0)
    early = [ratios(fitted.directions[:, known], own, 1.0, 0.5) for own in rest[:, known]]
    drifted = np.stack([ratios(fitted.directions[:, ~known], one, 1.0, 0.0) for one in later])
    halfway = (
        drifted.max(axis=0) + drifted.min(axis=0)
    ) / 2  # between sites with a canary and without
    found: Floats = np.stack(early) + drifted - halfway
    return found


def first_model(run: Transcript) -> dict[str, Floats]:
    """Return the model that the sites were sent first."""
    return arrays_by_tail(next(iter(run.sites.values()))[0].sent)


def same_arrays(one: Mapping[str, Floats], other: Mapping[str, Floats]) -> bool:
    """Whether all arrays with more than one number are equal; single numbers may be times and counts."""
    names = {name for name in one if one[name].size > 1} | {n for n in other if other[n].size > 1}
    return all(
        name in one and name in other and np.array_equal(one[name], other[name]) for name in names
    )


def stacked_as(own: Mapping[str, Floats], fitted: Fitted) -> Floats:
    """Arrange one site's numbers in the fitted order; missing ones are as without canaries."""
    parts, at = [], 0
    for name, size in zip(fitted.names, fitted.sizes, strict=True):
        found = own.get(name)
        expected = fitted.middle[at : at + size]
        parts.append(found if found is not None and len(found) == size else expected)
        at += size
    return np.concatenate(parts) if parts else np.zeros(0)


def common(*sites: Mapping[str, Floats]) -> list[str]:
    """List the names that all sites have, with equally many finite numbers."""
    found = []
    for name, value in sites[0].items():
        sizes = {len(one[name]) if name in one else -1 for one in sites}
        if sizes == {len(value)} and all(np.isfinite(one[name]).all() for one in sites):
            found.append(name)
    return found


def stacked(sites: Sequence[Mapping[str, Floats]], names: Sequence[str]) -> Floats:
    """Stack the named numbers of all sites, [sites, d]."""
    rows = [np.concatenate([one[name] for name in names] or [np.zeros(0)]) for one in sites]
    return np.stack(rows)


def published(run: Transcript) -> list[dict[str, Floats]]:
    """Compute how the model changes from turn to turn, by layer; all sites are sent the same model."""
    turns = next(iter(run.sites.values()))
    models = [arrays_by_tail(turn.sent) for turn in turns]
    models.append(arrays_by_tail(run.final))
    moves = []
    for before, after in pairwise(models):
        both = [name for name in before if name in after and before[name].ndim > 0]
        same = [name for name in both if before[name].shape == after[name].shape]
        moves.append({name: after[name] - before[name] for name in same})
    return moves


@dataclass(frozen=True)
class FittedServer:
    """Directions of the sites' canaries in the published model, turn by turn.

    Attributes
    ----------
    names : list of tuple of str
        Layers that change in each turn.
    middles : list of array
        Change of the model in each turn without canaries, [d].
    directions : list of array
        Directions of each turn, [sites, d].
    scales : list of float
        Share of a direction by which the model changes if the canary is in, per turn.
    """

    names: list[tuple[str, ...]]
    middles: list[Floats]
    directions: list[Floats]
    scales: list[float]


def fit_server(all_in: Transcript, all_out: Transcript) -> FittedServer:
    """Fit the directions of canaries in the published model, under central trust."""
    whole = answers_whole_models(next(iter(all_out.sites.values())))
    moves_in, moves_out = published(all_in), published(all_out)
    found = FittedServer([], [], [], [])
    for number, (move_in, move_out) in enumerate(zip(moves_in, moves_out, strict=False)):
        kinds = [move_in, move_out]
        rows = []
        for site in all_in.sites:
            pair = [
                arrays_by_tail(contributions(one.sites[site][number], whole))
                for one in (all_in, all_out)
            ]
            kinds += pair
            rows.append(pair)
        names = tuple(common_layers(kinds))
        directions = np.stack(
            [flat_layers(inside, names) - flat_layers(outside, names) for inside, outside in rows]
        )
        middle = flat_layers(move_out, names)
        total = directions.sum(axis=0)
        moved = flat_layers(move_in, names) - middle
        scale = float(moved @ total) / max(float(total @ total), 1e-300)
        found.names.append(names)
        found.middles.append(middle)
        found.directions.append(directions)
        found.scales.append(max(scale, 1e-12))
    return found


def scores_of_server(run: Transcript, fitted: FittedServer, holders: Sequence[int]) -> Floats:
    """Score the canaries [holders] by the published model; each holder is a site with a canary."""
    found = np.zeros(len(holders))
    for number, move in enumerate(published(run)):
        if number >= len(fitted.names) or any(name not in move for name in fitted.names[number]):
            continue
        rest = flat_layers(move, fitted.names[number]) - fitted.middles[number]
        own = fitted.directions[number][list(holders)]
        found += ratios(own, rest, fitted.scales[number], 0.5)
    return found


def unread_of_server(all_in: Transcript, all_out: Transcript, fitted: FittedServer) -> list[str]:
    """List the published numbers that changed between the two runs but belong to no compared layer.

    Returns
    -------
    list of str
        The last parts of their paths, each once, in order.
    """
    read = {name for names in fitted.names for name in names}
    both = zip(published_numbers(all_in), published_numbers(all_out), strict=False)
    moved: list[str] = []
    for one, other in both:
        for path, value in one.items():
            own = other.get(path)
            same = own is not None and own.shape == value.shape and np.array_equal(own, value)
            if not same and tail(path) not in read:
                moved.append(tail(path))
    return list(dict.fromkeys(moved))


def published_numbers(run: Transcript) -> list[dict[str, Floats]]:
    """Collect all numbers that a site was sent in each turn, and those that the server keeps at the end."""
    turns = [turn.sent for turn in next(iter(run.sites.values()))]
    found = []
    for values in (*turns, run.final):
        found.append({name: value for name, value in values.items() if not name.endswith(TEXT)})
    return found


def common_layers(kinds: Sequence[Mapping[str, Floats]]) -> list[str]:
    """List the layers that all of `kinds` have, with the same shape."""
    names = []
    for name, value in kinds[0].items():
        if value.ndim > 0 and all(name in one and one[name].shape == value.shape for one in kinds):
            names.append(name)
    return names


def flat_layers(values: Mapping[str, Floats], names: Sequence[str]) -> Floats:
    """Concatenate layers to one array [d]."""
    parts = [np.asarray(values[name], dtype=np.float64).reshape(-1) for name in names]
    return np.concatenate(parts or [np.zeros(0)])


def ratios(directions: Floats, rest: Floats, scale: float, middle: float) -> Floats:
    """Log-likelihood ratio for the presence of each canary's direction, fitted jointly by least squares; [canaries].

    Parameters
    ----------
    directions : array
        Directions [canaries, d].
    rest : array
        Numbers to be explained, [d].
    scale : float
        Share of its direction that a canary adds if it is in.
    middle : float
        Share of `scale` at the middle between in and out: 0.5, or 0 if the common part of sites was subtracted.
    """
    gram = directions @ directions.T
    if float(np.trace(gram)) <= 0.0:
        return np.zeros(len(directions))  # nothing moves
    gram += RIDGE * float(np.trace(gram)) * np.eye(len(gram))
    inverse = np.linalg.pinv(gram, hermitian=True)
    share = inverse @ (directions @ rest)
    weight = 1.0 / np.maximum(np.diag(inverse), 1e-300)
    found: Floats = (share - scale * middle) * scale * weight
    return found


def told_apart(directions: Floats) -> list[int]:
    """Select canaries, in order, whose directions differ enough from the directions selected before.

    Parameters
    ----------
    directions : array
        Directions [canaries, d]. With d < canaries some direction is a combination of others.
    """
    _, triangle, order = scipy.linalg.qr(directions.T, mode="economic", pivoting=True)
    lengths = np.linalg.norm(directions, axis=1)
    kept = []
    for place, size in enumerate(np.abs(np.diag(triangle))):
        if size > APART * lengths[order[place]]:
            kept.append(int(order[place]))
    return sorted(kept) or [0]
