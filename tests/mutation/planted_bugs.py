"""The planted bugs: each is one edit of one file, and the ordinary tests that must notice it."""

from dataclasses import dataclass

CORE = "tests/core/test_"
ENGINE = f"{CORE}engine_noise.py"
CENTRAL, LOCAL = f"{CORE}methods_central.py", f"{CORE}methods_local.py"
PARTIES, RULES, SCALES = f"{CORE}parties.py", f"{CORE}aggregation.py", f"{CORE}calibration.py"
GAME = f"{CORE}distinguishing.py"
PATHS = f"{CORE}game.py::test_no_claim_is_beaten"
SOUND = f"{CORE}sound_variants.py"
LOCKS = "tests/crash/test_lock.py"


@dataclass(frozen=True)
class Bug:
    """An edit: `old`, once in src/fedveil/`file`, becomes `new`; each of `tests` must catch it by itself."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _bug(name, file, old, new, *tests):
    return Bug(name, file, old, new, tests)


_NOISED = "noise = Gaussian(sigma)"
_CLIPPED = "clipped = updates.lengths, updates.clipped(bound)"
_FIRST = "noise.add_to(reduced, source=source)"
_PRINTED = "noise.add_to(model, source=source)"
_ORDER = 'first = self.order == "formal" or self.aggregator.identity_step'
_GROUP = "noise = EuclideanLaplace(epsilon).sample(len(model)"
_GROUP_OUT = 'Protected((Release("model", model + noise),), self._spend((epsilon,)'
_FEDRE = "update[s] += Gaussian(deviation).sample("
_FEDRE_CLIP = "update = clip(model - facts.start, bounds, facts.layout)"
_FEDRE_OUT = 'Protected((Release("model", facts.start + update),), self._spend(deviations'
_SGA = "update = update + Gaussian(sigma).sample("
_SGA_CLIP = "update = clip(model - facts.start, self.clip)"
_SGA_OUT = '(Release("model", released),), spend'
_KEY = "key = (self.ledger.party, round_, purpose, attempt)"
_COMMIT = "            self._commit(Entry((round_, purpose), attempt, mark, spend))\n"
_METHODS = {
    "central": "methods/central.py",
    "group": "methods/group_privacy.py",
    "fedre": "methods/fedre.py",
    "sga": "methods/sga_ldp.py",
    "metric": "methods/metric_privacy.py",
}
_SGA_TEST = f"{ENGINE}::test_sga_ldp_over_two_rounds"
_BOTH = (f"{ENGINE}::test_global", f"{ENGINE}::test_metric", CENTRAL)

BUGS = (
    # no clipping (group privacy has none by design)
    _bug(
        "no clipping, server",
        _METHODS["central"],
        _CLIPPED,
        "clipped = updates.lengths, updates",
        *_BOTH,
    ),
    _bug(
        "no clipping, fedre",
        _METHODS["fedre"],
        _FEDRE_CLIP,
        "update = model - facts.start",
        f"{ENGINE}::test_fedre",
        LOCAL,
    ),
    _bug("no clipping, sga", _METHODS["sga"], _SGA_CLIP, "update = model - facts.start", _SGA_TEST, LOCAL),
    # half the noise
    _bug("half the noise, server", _METHODS["central"], _NOISED, _NOISED.replace("sigma", "sigma / 2"), *_BOTH, GAME),
    _bug(
        "half the noise, group",
        _METHODS["group"],
        _GROUP,
        _GROUP.replace("epsilon", "2 * epsilon"),
        f"{ENGINE}::test_group",
        LOCAL,
    ),
    _bug(
        "half the noise, fedre",
        _METHODS["fedre"],
        _FEDRE,
        _FEDRE.replace("deviation", "deviation / 2"),
        f"{ENGINE}::test_fedre",
        LOCAL,
    ),
    _bug("half the noise, sga", _METHODS["sga"], _SGA, _SGA.replace("sigma", "sigma / 2"), _SGA_TEST, LOCAL),
    # the un-noised vector
    _bug("no noise, server", _METHODS["central"], _FIRST, "pass", *_BOTH, GAME),
    _bug("no noise, server, behind an optimiser", _METHODS["central"], _PRINTED, "pass", CENTRAL),
    _bug(
        "no noise, group",
        _METHODS["group"],
        _GROUP_OUT,
        _GROUP_OUT.replace(" + noise", ""),
        f"{ENGINE}::test_group",
        LOCAL,
        PATHS,
    ),
    _bug(
        "no noise, fedre",
        _METHODS["fedre"],
        _FEDRE,
        _FEDRE.replace("+= ", "+= 0 * "),
        f"{ENGINE}::test_fedre",
        LOCAL,
        PATHS,
    ),
    _bug(
        "no noise, sga",
        _METHODS["sga"],
        "released = facts.start + update",
        "released = facts.start + clip(model - facts.start, self.clip)",
        _SGA_TEST,
        LOCAL,
        PATHS,
    ),
    # the mechanisms
    _bug(
        "variance for deviation",
        "mechanisms/noise.py",
        ".mul_(self.sigma)",
        ".mul_(self.sigma**2)",
        f"{CORE}noise.py",
        ENGINE,
    ),
    _bug(
        "deviation for variance",
        "mechanisms/noise.py",
        ".mul_(self.sigma)",
        ".mul_(self.sigma**0.5)",
        f"{CORE}noise.py",
        ENGINE,
    ),
    _bug(
        "radius of one dimension",
        "mechanisms/noise.py",
        "radius = source.gamma(size)",
        "radius = source.gamma(1)",
        f"{CORE}noise.py",
        f"{ENGINE}::test_group",
    ),
    _bug(
        "direction not normalised",
        "mechanisms/noise.py",
        "radius / direction.norm()",
        "radius / size",
        f"{CORE}noise.py",
        f"{ENGINE}::test_group",
    ),
    _bug("float32 leaves the ball", "clipping.py", "SHRINK = 1e-6", "SHRINK = 0.0", f"{CORE}clipping.py"),
    _bug(
        "a subnormal factor",
        "clipping.py",
        "return (updates * root).mul_(root)",
        "return updates * factor.to(updates.dtype).reshape(root.shape)",
        f"{CORE}clipping.py",
    ),
    _bug(
        "a counter is encrypted twice",
        "mechanisms/secure.py",
        "self._next += blocks",
        "self._next += blocks - 1",
        f"{CORE}noise.py",
    ),
    _bug(
        "all blocks of noise are the same",
        "mechanisms/secure.py",
        "scratch.fill(parts[i], stream, first + i * need)",
        "scratch.fill(parts[i], stream, first)",
        f"{CORE}noise.py",
    ),
    _bug(
        "the last block has no noise",
        "mechanisms/noise.py",
        "range(0, _at_least_one(vector.numel()), _BLOCK)",
        "range(0, _at_least_one(vector.numel()) - _BLOCK + 1, _BLOCK)",
        f"{CORE}noise.py",
        ENGINE,
        CENTRAL,
    ),
    # sensitivities and where the noise goes
    _bug(
        "weighted mean as uniform",
        "aggregation/base.py",
        "return float(weights.max()) * clip",
        "return clip / len(weights)",
        RULES,
        CENTRAL,
    ),
    _bug(
        "replace-one as zero-out",
        "aggregation/base.py",
        'clip * (2.0 if relation == "replace-one" else 1.0)',
        "clip",
        RULES,
        CENTRAL,
        GAME,
    ),
    _bug(
        "median as mean",
        "aggregation/robust.py",
        "base = clip if len(weights) % 2 else clip / 2",
        "base = clip / len(weights)",
        RULES,
        CENTRAL,
        f"{ENGINE}::test_global_median",
    ),
    _bug(
        "trimmed mean as mean",
        "aggregation/robust.py",
        "bound = clip / (n - 2 * int(self.fraction * n))",
        "bound = clip / n",
        RULES,
    ),
    _bug("krum as mean", "aggregation/robust.py", "return 2 * clip", "return clip / len(weights)", RULES, CENTRAL),
    _bug(
        "optimiser before the noise",
        _METHODS["central"],
        _ORDER,
        "first = self.aggregator.identity_step",
        CENTRAL,
        f"{ENGINE}::test_global_with_an_optimiser_steps_on_the_noised_mean",
    ),
    _bug("rounded before the noise", _METHODS["central"], _ORDER, 'first = self.order == "formal"', CENTRAL),
    _bug(
        "divisor follows the replies",
        _METHODS["central"],
        "facts.broadcast.models[0], facts.broadcast.public.cohort, state.clip",
        "facts.broadcast.models[0], len(replies), state.clip",
        CENTRAL,
        f"{CORE}federation.py",
        PARTIES,
    ),
    _bug(
        "printed noise for the plan",
        _METHODS["central"],
        "bound / len(updates)",
        "bound / cohort",
        CENTRAL,
        f"{CORE}federation.py",
    ),
    _bug("the bit is free", _METHODS["central"], "spend = _with_bit(spend, self.clip)", "pass", CENTRAL),
    _bug("adaptive clip runs the wrong way", "clipping.py", "min(-self.lr", "min(self.lr", CENTRAL),
    # streams
    _bug("noise repeats in every round", "engines/party.py", _KEY, _KEY.replace("round_, ", ""), PARTIES, ENGINE),
    _bug(
        "clients share their noise", "engines/party.py", _KEY, _KEY.replace("self.ledger.party, ", ""), PARTIES, ENGINE
    ),
    _bug("noise repeats after a crash", "engines/party.py", _KEY, _KEY.replace(", attempt", ""), PARTIES),
    _bug(
        "a child is its parent",
        "mechanisms/source.py",
        "_key=(*self._key, *key))",
        "_key=self._key)",
        f"{CORE}noise.py",
        PARTIES,
    ),
    # calibration
    _bug(
        "distances of models that are not centred",
        "calibration/pairs.py",
        "(block - block.mean(0)).to(dtype)",
        "block.to(dtype)",
        f"{CORE}kernels.py",
        SCALES,
    ),
    _bug("like numbers drift", "calibration/pairs.py", "_DEPTH = 1 << 10", "_DEPTH = 1 << 30", f"{CORE}kernels.py"),
    _bug(
        "one clip for all layers",
        _METHODS["fedre"],
        _FEDRE_CLIP,
        "update = clip(model - facts.start, max(bounds.values()))",
        LOCAL,
    ),
    _bug(
        "per-layer clip taken for a global one",
        "clipping.py",
        "layer = torch.stack([norms(updates[..., s]).square() for s in slices]).sum(0).sqrt()",
        "layer = norms(updates)",
        f"{CORE}clipping.py",
        LOCAL,
    ),
    _bug(
        "no guard",
        _METHODS["metric"],
        "honest = lengths <= OUTLIER * lengths.median()",
        "honest = lengths <= lengths.max()",
        CENTRAL,
        f"{ENGINE}::test_metric_with_one_boasting_client",
    ),
    _bug("guard too eager", _METHODS["metric"], "OUTLIER = 10.0", "OUTLIER = 1.0", CENTRAL),
    _bug(
        "no distance, no noise scale",
        "calibration/distance.py",
        "        if d == 0:\n",
        "        if d < 0:\n",
        SCALES,
        CENTRAL,
        f"{ENGINE}::test_metric_with_identical_clients",
    ),
    _bug(
        "the optimiser's own model forgotten",
        "methods/central.py",
        "model.clone() if self.step_from",
        "None if self.step_from",
        "tests/core/test_flower_rules.py",
    ),
    _bug(
        "distance after the clip",
        _METHODS["metric"],
        'self.distance_on == "raw" else',
        'self.distance_on == "clipped" else',
        CENTRAL,
        f"{ENGINE}::test_metric",
    ),
    _bug(
        "distance turned over",
        "calibration/distance.py",
        'base / d if self.direction == "less" else base * d',
        'base * d if self.direction == "less" else base / d',
        SCALES,
        CENTRAL,
    ),
    _bug(
        "budget grows with the score",
        "calibration/layers.py",
        "inverse = [1 / max(v / largest, FLOOR)",
        "inverse = [max(v / largest, FLOOR)",
        SCALES,
        f"{ENGINE}::test_fedre",
    ),
    _bug(
        "nu times n",
        "calibration/neighbourhood.py",
        "return len(update) / (self.noise_multiplier * length)",
        "return self.noise_multiplier * len(update) / length",
        SCALES,
        f"{ENGINE}::test_group",
    ),
    _bug(
        "a negative cosine loosens",
        "calibration/alignment.py",
        "aligned = max(0.0, cosine(update, reference))",
        "aligned = abs(cosine(update, reference))",
        SCALES,
        _SGA_TEST,
    ),
    _bug(
        "a stale reference",
        _METHODS["sga"],
        "state.model is None or state.round != broadcast.public.round - 1",
        "state.model is None",
        LOCAL,
    ),
    _bug(
        "sound sga forgets any two inputs",
        _METHODS["sga"],
        "sigma = 2 * calibrator.sigma(epsilon)",
        "sigma = calibrator.sigma(epsilon)",
        LOCAL,
    ),
    _bug("sound fedre forgets any two inputs", _METHODS["fedre"], "return [2 * length /", "return [length /", LOCAL),
    # the scale from private data, where a proof is claimed
    _bug(
        "sound sga takes the private cosine",
        _METHODS["sga"],
        "            epsilon = self._released_epsilon(facts.broadcast, state)\n",
        "            epsilon = calibrator.epsilon(update, _reference(facts.broadcast, state))\n",
        SOUND,
        LOCAL,
    ),
    _bug(
        "sound metric privacy measures the clients",
        _METHODS["metric"],
        '        if self.distance_on == "released":\n            d,',
        "        if False:\n            d,",
        SOUND,
        CENTRAL,
    ),
    _bug(
        "sound fedre scores the private region",
        _METHODS["fedre"],
        """        if self.scores == "public":\n            known""",
        "        if False:\n            known",
        SOUND,
        LOCAL,
    ),
    _bug(
        "the radius is the step after all",
        _METHODS["group"],
        "        if epsilon is None:\n",
        "        if True:\n",
        LOCAL,
        f"{ENGINE}::test_group",
    ),
    _bug(
        "an empty cluster is zeroed",
        "aggregation/clusters.py",
        "result = hypotheses.clone()",
        "result = torch.zeros_like(hypotheses)",
        RULES,
        LOCAL,
    ),
    _bug(
        "printed weights by default",
        "aggregation/perturbation.py",
        "torch.softmax(-s, dim=0)",
        "torch.softmax(s, dim=0)",
        RULES,
        f"{ENGINE}::test_fedre",
    ),
    # accounting
    _bug(
        "a heuristic prints an epsilon",
        "accounting/guarantee.py",
        'return f"heuristic ({where})"',
        'return f"heuristic eps=1 ({where})"',
        f"{CORE}guarantees.py",
    ),
    _bug(
        "a heuristic has an epsilon",
        "accounting/guarantee.py",
        "        if not self.proven:\n",
        "        if False:\n",
        f"{CORE}guarantees.py",
        CENTRAL,
    ),
    _bug(
        "metric privacy claims a proof",
        _METHODS["metric"],
        "return self._heuristic(\"the noise's scale depends on the clients' unprotected models\", sigma)",
        "return self._proven(sigma, bound, weights, cohort)",
        CENTRAL,
    ),
    _bug(
        "rounds do not add up",
        "gdp.py",
        'math.hypot(*(require_non_negative("mu", m) for m in mus))',
        "max(mus, default=0.0)",
        f"{CORE}gdp.py",
        f"{CORE}guarantees.py",
    ),
    _bug(
        "a filter charges what it refuses",
        "accounting/filters.py",
        "            return False\n        self.spent = after\n",
        "            self.spent = after\n            return False\n        self.spent = after\n",
        f"{CORE}guarantees.py",
    ),
    _bug(
        "a plan overshoots",
        "accounting/planning.py",
        "    mu = factor * math.sqrt(rounds) / z\n",
        "    mu = math.sqrt(rounds) / z\n",
        f"{CORE}planning.py",
    ),
    _bug(
        "an edited ledger is believed",
        "accounting/ledger.py",
        "            if checksum != cls._checksum(ledger._chain, json.dumps(values, sort_keys=True)):\n",
        "            if False:\n",
        f"{CORE}ledger.py",
    ),
    _bug(
        "the digest misses the bits",
        "accounting/release.py",
        "        h.update(value.reshape(-1).view(torch.uint8).numpy().data)\n",
        "",
        f"{CORE}ledger.py",
        PARTIES,
    ),
    _bug(
        "a total forgets a release",
        "accounting/guarantee.py",
        "mu = compose_mu(p.mu or 0.0 for p in parts)",
        "mu = compose_mu(p.mu or 0.0 for p in parts[1:])",
        f"{CORE}guarantees.py",
        f"{CORE}game.py",
    ),
    _bug(
        "a lowered budget lowers the total",
        "accounting/filters.py",
        "        if charged > self.budget * (1 + 1e-12):\n",
        "        if False:\n",
        f"{CORE}guarantees.py",
        f"{CORE}federation.py",
    ),
    _bug(
        "fixed-size sampling forgets the other unit",
        "accounting/composition.py",
        "inner = dp.GaussianDpEvent(event.event.noise_multiplier / 2)",
        "inner = dp.GaussianDpEvent(event.event.noise_multiplier)",
        f"{CORE}accounting.py",
    ),
    _bug(
        "sampling under replacement as under removal",
        "accounting/composition.py",
        '"replace-one": NeighboringRelation.REPLACE_ONE,',
        '"replace-one": NeighboringRelation.ADD_OR_REMOVE_ONE,',
        f"{CORE}accounting.py",
    ),
    _bug(
        "gaussians forget the doubled sensitivity",
        "accounting/planning.py",
        '"add/remove": 1.0, "replace-one": 2.0}',
        '"add/remove": 1.0, "replace-one": 1.0}',
        f"{CORE}accounting.py",
        f"{CORE}planning.py",
    ),
    _bug(
        "a vast loss costs nothing",
        "accounting/composition.py",
        "    return added + float(composed.get_epsilon_for_delta(delta))\n",
        "    return float(composed.get_epsilon_for_delta(delta))\n",
        f"{CORE}accounting.py",
    ),
    _bug(
        "removal from a divisor that follows it",
        _METHODS["central"],
        '        elif self.relation == "add/remove":\n',
        "        elif False:\n",
        CENTRAL,
    ),
    _bug(
        "half the noise, discrete",
        _METHODS["central"],
        "DiscreteGaussian(STEPS).sample(",
        "DiscreteGaussian(STEPS // 2).sample(",
        CENTRAL,
    ),
    _bug(
        "the discrete sampler takes the Laplace draw",
        "mechanisms/discrete.py",
        "kept = _exponential(distance * distance, 2 * variance * t * t, source)",
        "kept = _exponential(distance * 0, 2 * variance * t * t, source)",
        f"{CORE}discrete.py",
        CENTRAL,
    ),
    _bug(
        "no norm is checked on the grid",
        "mechanisms/discrete.py",
        "in row.split(1 << 16)) > limit:",
        "in row.split(1 << 16)) < 0:",
        f"{CORE}discrete.py",
    ),
    _bug(
        "rounded away from zero",
        "mechanisms/discrete.py",
        "steps = torch.trunc(",
        "steps = torch.round(",
        f"{CORE}discrete.py",
    ),
    _bug(
        "the noised bit is not noised",
        "clipping.py",
        "+ self.bit_noise * noise)",
        "+ 0 * noise)",
        CENTRAL,
        f"{CORE}game.py",
    ),
    _bug(
        "a large delta passes without a word",
        "accounting/planning.py",
        "    if delta <= 1 / units:\n",
        "    if True:\n",
        f"{CORE}planning.py",
        f"{CORE}hostile_input.py",
    ),
    # runs and their folders
    _bug("two processes write", "experiments/lock.py", "            _lock(handle)\n", "            pass\n", LOCKS),
    _bug(
        "a ledger can be emptied with its checkpoint",
        "experiments/runfolder.py",
        '            if row.get("round", 0) > max(released, default=0):\n',
        "            if False:\n",
        LOCKS,
    ),
    # parties
    _bug(
        "the filter starts over on resume",
        "engines/party.py",
        "for entry in ledger.entries:",
        "for entry in ():",
        PARTIES,
        f"{CORE}federation.py",
    ),
    _bug(
        "a lowered budget is forgotten",
        "engines/party.py",
        "self._overspent |= not budget.admit_spend(entry.spend)",
        "budget.admit_spend(entry.spend)",
        PARTIES,
    ),
    _bug(
        "nothing is stored",
        "engines/party.py",
        "        self._store(line)\n",
        "",
        PARTIES,
        f"{CORE}federation.py",
    ),
    _bug("nothing is committed", "engines/party.py", _COMMIT, "", PARTIES, f"{CORE}federation.py"),
    _bug(
        "handed over although the ledger failed",
        "engines/party.py",
        _COMMIT,
        f"            try:\n    {_COMMIT}            except OSError:\n                pass\n",
        PARTIES,
    ),
    _bug(
        "handed over at the second try",
        "engines/party.py",
        "        if self._unwritten:",
        "        if False:",
        PARTIES,
    ),
    _bug(
        "a quote may be exceeded",
        "engines/party.py",
        "if self._quoted is not None and _dearer(protected.spend, self._quoted):",
        "if False:",
        PARTIES,
    ),
    _bug(
        "a model leaves in an evaluation",
        "engines/party.py",
        """        if kinds := {r.kind for r in releases} - {"metric", "count"}:\n""",
        "        if kinds := set():\n",
        PARTIES,
    ),
    _bug(
        "absurd counts are believed",
        "methods/contract.py",
        "not 0 <= count <= LARGEST_COUNT",
        "not 0 <= count < float('inf')",
        PARTIES,
    ),
    _bug(
        "weights are taken as they come",
        _METHODS["central"],
        "    if not kept or not bool((weights >= 0).all()):\n",
        "    if False:\n",
        CENTRAL,
    ),
    _bug(
        "a redraw is free",
        "engines/party.py",
        "if not (charged and attempt == 0) and not self._charge(spend):",
        "if attempt == 0 and not charged and not self._charge(spend):",
        PARTIES,
    ),
    _bug(
        "a failure is free",
        "engines/party.py",
        "if self._quoted is not None and self.ledger.find(",
        "if self._quoted is None and self.ledger.find(",
        PARTIES,
        f"{CORE}federation.py",
    ),
    _bug(
        "replies in order of arrival",
        "engines/party.py",
        "for partition in sorted(replies):",
        "for partition in replies:",
        PARTIES,
    ),
    _bug(
        "a metric leaks in evaluation",
        "engines/party.py",
        "return self.method.client.protect(releases, facts, self.state, source).releases",
        "return releases",
        PARTIES,
    ),
    # metrics that clients see
    _bug(
        "published metrics have no noise",
        "methods/publishing.py",
        "(cut / ranges - 0.5).mean(0) + noise",
        "(cut / ranges - 0.5).mean(0)",
        f"{CORE}publishing.py",
        PATHS,
    ),
    _bug(
        "published metrics are free",
        "methods/publishing.py",
        "mu=factor / self.noise_multiplier,",
        "mu=0.0,",
        f"{CORE}publishing.py",
    ),
    _bug(
        "two metrics move no further than one",
        "methods/publishing.py",
        "moved = math.sqrt(m) / (2 * n)",
        "moved = 1 / (2 * n)",
        f"{CORE}publishing.py",
    ),
    # what local trust keeps on the client
    _bug(
        "metrics leak, group",
        _METHODS["group"],
        _GROUP_OUT,
        _GROUP_OUT.replace("model + noise),)", "model + noise), *releases[1:])"),
        LOCAL,
        f"{CORE}federation.py",
    ),
    _bug(
        "metrics leak, fedre",
        _METHODS["fedre"],
        _FEDRE_OUT,
        _FEDRE_OUT.replace("update),)", "update), *releases[1:])"),
        LOCAL,
        f"{CORE}federation.py",
    ),
    _bug(
        "metrics leak, sga",
        _METHODS["sga"],
        _SGA_OUT,
        _SGA_OUT.replace("released),)", "released), *releases[1:])"),
        LOCAL,
        f"{CORE}federation.py",
    ),
    # the Flower room
    _bug(
        "flower: the raw model passes",
        "engines/flower/mod.py",
        "released = party.release(found, facts)",
        "released = (party.release(found, facts), found)[1]",
        "tests/flower/test_flower_noise.py",
        "tests/flower/test_flower_engines.py",
    ),
    _bug(
        "flower: metrics pass",
        "engines/flower/mod.py",
        "write_reply(party.report(measured, facts), layout",
        "write_reply(measured, layout",
        "tests/flower/test_flower_mod.py",
    ),
    _bug(
        "flower: a failure is free",
        "engines/flower/mod.py",
        "                party.abandon(broadcast.public)\n",
        "                pass\n",
        "tests/flower/test_flower_mod.py",
    ),
    _bug(
        "flower: errors quote the data",
        "engines/flower/mod.py",
        'private=settings.method.client.trust == "local")',
        "private=False)",
        "tests/flower/test_flower_mod.py",
    ),
    _bug(
        "flower: a spoofed partition is believed",
        "engines/flower/strategy.py",
        "                    if claimed != partition:\n",
        "                    if False:\n",
        "tests/flower/test_flower_strategy.py",
    ),
    _bug(
        "flower: a missing mod is ignored",
        "engines/flower/records.py",
        "    mark = content.get(REPLY)\n",
        "    mark = content.get(REPLY, ConfigRecord({'side': type(client).__name__, 'trust': client.trust}))\n",
        "tests/flower/test_flower_strategy.py",
    ),
)
