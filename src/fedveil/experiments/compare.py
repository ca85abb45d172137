"""Run several privacy settings side by side."""

from __future__ import annotations

from pathlib import Path

from fedveil.clipping import QuantileClip
from fedveil.errors import FieldError, require_count
from fedveil.experiments.attacked import keep, run_name
from fedveil.experiments.config import Config
from fedveil.experiments.folders import COMPARISON, CONFIG, refuse_used, require_begun
from fedveil.experiments.ledgers import replace
from fedveil.experiments.loading import load
from fedveil.experiments.runner import Progress, Silent, run
from fedveil.experiments.sections import Setting
from fedveil.experiments.settings import configure, variants_of
from fedveil.experiments.summary import Summary
from fedveil.methods.central import CentralNoise


def compare(
    config: Config,
    out: str | Path | None = None,
    *,
    seeds: int = 1,
    resume: bool = False,
    progress: Progress | None = None,
) -> list[Summary]:
    """Run every setting of ``[compare]``, each under the same seeds.

    Parameters
    ----------
    config : Config
        The settings and what they share.
    out : path, optional
        One folder a run (``<setting>``, or ``<setting>-seed-<n>`` for the repetitions), the comparison's own
        ``config.toml``, and ``comparison.json``: the list of summaries, with what an audit in ``audit`` found.
    seeds : int
        Repetitions: the configuration's seed and those that follow it. Data are dealt out anew under each.
    resume : bool
        Keep finished runs and go on with the others; with no fewer seeds than the folder has.
    progress : Progress, optional
        Is told how it goes.

    Returns
    -------
    list of Summary
        Setting by setting, seed by seed.
    """
    progress = progress or Silent()
    require_count("--seeds", seeds)
    path = None if out is None else Path(out)
    if path is not None:
        _open(path, config, resume)
        seeds = max(seeds, _begun(path, config)) if resume else seeds
    summaries: list[Summary] = []
    for variant in variants_of(config):
        label = variant.label
        for seed in range(config.seed, config.seed + seeds):
            single = configure(config, label, variant.setting).model_copy(update={"seed": seed})
            if variant.setting.match_sigma_of:
                single = _matched(config, label, variant.setting, summaries, seed)
            folder = None if path is None else path / run_name(label, seed, first=seed == config.seed)
            again = resume and folder is not None and (folder / CONFIG).exists()
            summary = _finished(folder, single) if again and folder is not None else None
            if summary is None:
                summary = run(single, folder, resume=again, progress=progress, setting=label)
            place = {"base": variant.base, "swept": dict(variant.swept)}
            summaries.append(Summary({**summary.values, **place}, summary.rows))
    return summaries if path is None else keep(summaries, path)


def _open(path: Path, config: Config, resume: bool) -> None:
    if not resume:
        refuse_used(path)
        path.mkdir(parents=True, exist_ok=True)
        replace(path / CONFIG, config.to_toml().encode())
        return
    require_begun(path, COMPARISON)
    if load(path).fingerprint() != config.fingerprint():
        raise FieldError("--resume", str(path), "holds a comparison with another configuration; give another --out")


def _finished(folder: Path, config: Config) -> Summary | None:
    """What a finished run holds, if it is this one."""
    if not (folder / "summary.json").is_file() or load(folder).fingerprint() != config.fingerprint():
        return None
    return Summary.read(folder)


def _begun(path: Path, config: Config) -> int:
    """How many seeds a folder has runs of."""
    labels = [variant.label for variant in variants_of(config)]
    number = 0
    while any((path / run_name(label, config.seed + number, first=number == 0)).is_dir() for label in labels):
        number += 1
    return number


def _matched(config: Config, label: str, setting: Setting, summaries: list[Summary], seed: int) -> Config:
    """Global DP whose sigma is the average sigma of an earlier setting's run under the same seed."""
    earlier = next(s for s in summaries if s.setting == setting.match_sigma_of and s.values["seed"] == seed)
    unit = configure(config, label, setting, noise_multiplier=1.0)
    multiplier = matching_multiplier(unit, earlier)
    chosen = configure(config, label, setting, noise_multiplier=multiplier, derived_from=setting.match_sigma_of)
    return chosen.model_copy(update={"seed": seed})


def matching_multiplier(config: Config, earlier: Summary) -> float:
    """The noise multiplier at which global DP adds the average sigma of an earlier run; see `multiplier_for`."""
    return multiplier_for(config, earlier.noise("sigma"), int(earlier.values["clients"]), earlier.setting)


def multiplier_for(config: Config, sigma: float | None, clients: int, earlier: str) -> float:
    """The noise multiplier at which global DP adds noise of this deviation.

    Parameters
    ----------
    config : Config
        Of global DP; its own noise multiplier does not matter.
    sigma : float or None
        The average of an earlier setting; None if that added no noise on the server.
    clients : int
        Of the federation.
    earlier : str
        Label of that setting.

    Raises
    ------
    FieldError
        If there was none, or sigma follows a clipping norm that adapts.
    """
    if sigma is None:
        raise FieldError("compare.match_sigma_of", earlier, "added no noise on the server")
    server = config.privacy.build(config.aggregator).server
    assert isinstance(server, CentralNoise)
    cohort = config.clients_per_round or clients
    if isinstance(server.clip, QuantileClip):
        raise FieldError("privacy.clip", "a table", "no sigma can be matched while the clipping norm adapts")
    return sigma / (server._sensitivity(server.clip, cohort) if server.order == "formal" else server.clip / cohort)
