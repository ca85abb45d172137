"""The secure sum: one integer sum from all shares of one question, and nothing from any other set of shares."""

import hashlib
import hmac
import math
import pickle
import struct
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from core_kit import IMPOSSIBLE, variance_p
from fedveil.accounting import SumPolicy
from fedveil.errors import FieldError, NoReplyError, ReplyError
from fedveil.gdp import epsilon_of_mu
from fedveil.mechanisms import KeyedSource, WideGaussianNoise
from fedveil.mechanisms.discrete import LARGEST
from fedveil.secure import (
    Site,
    SiteKey,
    SumContext,
    SumTerms,
    on_grid,
    public_key,
    roster,
    share,
    shares,
    unmasked,
)

TERMS = SumTerms(
    unit="person",
    relation="zero-out",
    clip=1.0,
    noise_multiplier=4.0,
    denominator=50.0,
    rate=1.0,
    units=1000,
    dimension=60,
    least_sites=3,
)
ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
LOW_ORDER = (
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"  # RFC 7748's group, order 8
)


def site(i):
    return SiteKey(hashlib.sha512(f"site {i}".encode()).digest())


def asked(keys, **changes):
    terms = changes.pop("terms", TERMS)
    about = {"run": "r", "round": 1, "attempt": 0, "broadcast": "b", "layout": "l", **changes}
    return SumContext(roster=tuple(k.public for k in keys), terms=terms, **about)


def sums(n, terms=TERMS, seed=0):
    rows = torch.randn(
        n, 7, terms.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return on_grid(rows / rows.norm(dim=2, keepdim=True) * terms.clip, terms.grid).sum(1)


def noise_of(key, context, total):
    mark = int.from_bytes(hashlib.sha256(total.numpy().tobytes()).digest(), "big")
    return context.terms.noise.sample(
        len(total), source=key.source(context.digest).child("noise", mark)
    )


# ---- the sum


@pytest.mark.parametrize("n", [3, 4, 11, 40])
def test_all_shares_give_the_integer_sum_of_what_went_in_to_the_bit(n):
    keys, totals = [site(i) for i in range(n)], sums(n)
    context = asked(keys)
    shares = [share(x, k, context, context.roster) for x, k in zip(totals, keys, strict=True)]
    plain = sum(x + noise_of(k, context, x) for x, k in zip(totals, keys, strict=True))
    assert torch.equal(unmasked(reversed(shares), context), plain.double() * TERMS.grid)


def test_a_site_that_is_missing_leaves_random_numbers():
    keys = [site(i) for i in range(4)]
    context = asked(keys, terms=replace(TERMS, dimension=20_000))
    totals = torch.zeros(4, 20_000, dtype=torch.int64)
    shares = [share(x, k, context, context.roster) for x, k in zip(totals, keys, strict=True)]
    with pytest.raises(ReplyError, match="3 of 4"):
        unmasked(shares[:3], context)
    for some in (shares[:1], shares[:3], shares[1:3]):
        left = sum(s.numpy().view(np.uint64) for s in some)
        assert stats.kstest(left.astype(float) / 2**64, "uniform").pvalue > 1e-6
    whole = sum(s.numpy().view(np.uint64) for s in shares).view(np.int64)
    assert np.abs(whole).max() < 10 * TERMS.noise.sigma * 2


CHANGES = {
    "run": "s",
    "round": 2,
    "attempt": 1,
    "broadcast": "c",
    "layout": "m",
    "unit": "record",
    "relation": "add/remove",
    "clip": 1.0000001,
    "noise_multiplier": 4.0000001,
    "denominator": 51.0,
    "rate": 0.5,
    "units": 1001,
    "least_sites": 4,
    "colluding": 2,
    "roster": 5,
    "silos_per_person": 2,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_site_that_is_told_anything_else_draws_other_masks(name):
    keys, totals = [site(i) for i in range(5)], sums(5)
    terms = replace(TERMS, least_sites=4)
    told = asked(keys[:4] if name != "roster" else keys, terms=terms)
    value = CHANGES[name] if name != "least_sites" else 3
    if name in ("run", "round", "attempt", "broadcast", "layout"):
        told = replace(told, **{name: value})
    elif name != "roster":
        told = replace(told, terms=replace(terms, **{name: value}))
    context, peers = asked(keys[:4], terms=terms), roster([k.public for k in keys])
    shares = [share(totals[i], keys[i], told if i == 2 else context, peers) for i in range(4)]
    with pytest.raises(NoReplyError, match="cancel"):  # numbers up to 2^63 steps, and not a sum's
        unmasked(shares, context)
    assert told.digest != context.digest


def test_every_field_of_a_question_is_bound():
    fields = set(vars(asked([site(i) for i in range(3)]))) - {"terms"} | set(vars(TERMS)) - {
        "dimension"
    }
    assert fields == set(CHANGES)


def test_the_same_round_with_and_without_a_site_differs_by_all_noise_of_both():
    terms = replace(TERMS, dimension=4000, least_sites=3)
    keys, totals = [site(i) for i in range(5)], sums(5, terms)
    answers = []
    for some in (range(5), range(4)):
        context = asked([keys[i] for i in some], terms=terms)
        shares = [share(totals[i], keys[i], context, context.roster) for i in some]
        answers.append(unmasked(shares, context))
    rest = (answers[0] - answers[1] - totals[4].double() * terms.grid) / terms.grid
    assert (
        variance_p(rest.numpy(), terms.noise.sigma * 3) > 1e-6
    )  # nine shares; one alone if noise were kept
    assert variance_p(rest.numpy(), terms.noise.sigma) < IMPOSSIBLE


def test_sites_that_pool_their_keys_with_the_server_finish_the_sum_of_all_honest_ones_and_nothing_less():
    """Two of four, who may have dropped out: what two honest sites sent, the masks with the two taken off."""
    terms = replace(TERMS, dimension=20_000, least_sites=4, colluding=2)
    keys, totals = [site(i) for i in range(4)], sums(4, terms)
    context = asked(keys, terms=terms)
    left = []
    for x, k in zip(totals[:2], keys[:2], strict=True):
        sent = share(x, k, context, context.roster).numpy().view(np.uint64).copy()
        for pooled in keys[2:]:  # a mask is computed from either end
            shares._mask(
                sent,
                pooled.pair_key(k.public, b"mask" + context.digest),
                add=k.public > pooled.public,
            )
        assert stats.kstest(sent.astype(float) / 2**64, "uniform").pvalue > 1e-6  # one alone
        left.append(sent)
    rest = torch.from_numpy(sum(left).view(np.int64)) - totals[0] - totals[1]
    assert torch.equal(
        rest, sum(noise_of(k, context, x) for k, x in zip(keys[:2], totals[:2], strict=True))
    )
    assert (
        variance_p((rest * terms.grid).numpy(), terms.noise_multiplier * terms.clip) > 1e-6
    )  # what is promised
    assert (
        variance_p((rest * terms.grid).numpy(), terms.noise_multiplier * terms.clip / 1.1)
        < IMPOSSIBLE
    )


# ---- a site that is asked again


def test_the_same_question_gives_the_same_bits_and_other_data_other_noise():
    keys, (one, other, *_) = [site(i) for i in range(3)], sums(3)
    context = asked(keys)
    assert torch.equal(
        share(one, keys[0], context, context.roster), share(one, keys[0], context, context.roster)
    )
    apart = share(one, keys[0], context, context.roster) - share(
        other, keys[0], context, context.roster
    )
    assert (
        variance_p((apart - (one - other)).double().numpy(), TERMS.noise.sigma * math.sqrt(2))
        > 1e-6
    )


def test_noise_is_fresh_under_every_attempt_round_and_site():
    keys, total = [site(i) for i in range(3)], torch.zeros(60, dtype=torch.int64)
    contexts = [asked(keys), asked(keys, attempt=1), asked(keys, round=2)]
    drawn = [noise_of(k, c, total) for k in keys for c in contexts]
    assert len({tuple(v.tolist()) for v in drawn}) == 9


def test_a_keyed_source_is_a_function_of_its_keys_and_cannot_be_copied():
    source = KeyedSource(bytes(32))
    first = source.child("a", 1).normal(100)
    assert torch.equal(first, KeyedSource(bytes(32)).child("a", 1).normal(100))
    assert not torch.equal(first, source.child("a", "1").normal(100))
    assert stats.kstest(source.child("b").normal(20_000), "norm").pvalue > 1e-6
    again = source.child("a", 1)
    again.normal(100)
    assert not torch.equal(first, again.normal(100))  # successive draws differ
    for secret in (source, site(0)):
        with pytest.raises(TypeError):
            pickle.dumps(secret)
    with pytest.raises(FieldError, match="key"):
        KeyedSource(b"short")


# ---- keys


def chacha20(key, blocks):
    """The stream of RFC 8439's block function with a zero nonce, in plain Python."""

    def quarter(s, a, b, c, d):
        for x, y, z, r in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            s[z] ^= s[x]
            s[z] = ((s[z] << r) | (s[z] >> (32 - r))) & 0xFFFFFFFF

    out = b""
    for i in range(blocks):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), i, 0, 0, 0]
        s = list(start)
        for _ in range(10):
            for q in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
                quarter(s, *q)
            for q in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
                quarter(s, *q)
        out += struct.pack("<16I", *((v + w) & 0xFFFFFFFF for v, w in zip(s, start, strict=True)))
    return out


def test_masks_follow_the_key_schedule_of_the_page():
    # RFC 7748, 6.1: the two keys of its example and the secret they share; HKDF (RFC 5869) and ChaCha20 by hand
    alice, bob = (SiteKey(bytes.fromhex(secret) + bytes(32)) for secret in (ALICE, BOB))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    context = asked([alice, bob, site(0)], terms=replace(TERMS, dimension=16))
    info = b"".join(sorted((alice.public, bob.public))) + b"mask" + context.digest
    key = hmac.digest(b"fedveil secure sum", bytes.fromhex(SHARED), "sha256")
    seed = hmac.digest(key, info + b"\x01", "sha256")
    assert (
        alice.pair_key(bob.public, b"mask" + context.digest)
        == seed
        == bob.pair_key(alice.public, info[64:])
    )
    mine = [
        share(torch.zeros(16, dtype=torch.int64), k, context, context.roster) for k in (alice, bob)
    ]
    mine = [
        s - noise_of(k, context, torch.zeros(16, dtype=torch.int64))
        for s, k in zip(mine, (alice, bob), strict=True)
    ]
    third = [k.pair_key(site(0).public, b"mask" + context.digest) for k in (alice, bob)]
    pair = np.frombuffer(chacha20(seed, 2), dtype="<u8")
    for own, key, rest in zip((alice, bob), third, mine, strict=True):
        other = np.frombuffer(chacha20(key, 2), dtype="<u8")
        total = pair if own.public == min(alice.public, bob.public) else -pair
        total = total + (other if own.public < site(0).public else -other)
        assert np.array_equal(rest.numpy().view(np.uint64), total)


@pytest.mark.parametrize("bad", ["00" * 32, LOW_ORDER])
def test_a_key_whose_secret_everybody_knows_is_refused(bad):
    with pytest.raises(FieldError) as refused:
        site(0).pair_key(public_key(bad), b"")
    assert refused.value.value == bad


@pytest.mark.parametrize(
    "bad", ["", "zz" * 32, "00" * 31, b"short", 7, None, "ff" * 32, "ed" + "ff" * 30 + "7f"]
)
def test_what_is_no_key_or_another_spelling_of_one_is_refused(bad):
    with pytest.raises(FieldError) as refused:
        public_key(bad, "peers")
    assert refused.value.field == "peers"


def test_rosters_that_a_site_does_not_answer():
    keys = [site(i) for i in range(4)]
    total = torch.zeros(60, dtype=torch.int64)
    pinned = tuple(k.public for k in keys[1:3])
    for context, peers in (
        (asked(keys[1:]), pinned),  # without itself
        (asked(keys), pinned),  # with somebody who is not pinned
        (asked(keys[:3]), pinned[:1]),
    ):
        with pytest.raises(FieldError, match="roster"):
            share(total, keys[0], context, peers)
    assert len(share(total, keys[0], asked(keys[:3]), pinned)) == 60
    for some in (keys[:2], [keys[0], *keys[:2]]):  # too few; one twice
        with pytest.raises(FieldError, match="roster"):
            asked(some)
    with pytest.raises(FieldError, match="own key"):
        keys[0].pair_key(keys[0].public, b"")


@pytest.mark.parametrize(
    ("unit", "said", "pinned", "answers"),
    [
        ("person", 1, 2, False),
        ("person", 2, 2, True),
        ("person", 3, 2, True),
        ("record", 1, 2, True),  # a record is at one site
    ],
)
def test_a_server_cannot_say_that_persons_are_at_fewer_sites_than_the_contract(
    unit, said, pinned, answers
):
    keys = [site(i) for i in range(3)]
    terms = replace(TERMS, unit=unit, silos_per_person=said)
    here = Site(
        keys[0], SumPolicy(peers=[k.public.hex() for k in keys[1:]], silos_per_person=pinned)
    )
    with nullcontext() if answers else pytest.raises(FieldError, match="silos_per_person"):
        here.require(asked(keys, terms=terms))


@pytest.mark.parametrize("number", [0, 4, 1.5, True])
def test_a_person_is_at_one_site_at_least_and_at_most_at_all(number):
    with pytest.raises(FieldError, match="silos_per_person"):
        SumPolicy(peers=[site(i).public.hex() for i in (1, 2)], silos_per_person=number)


@pytest.mark.parametrize("number", [-1, 1 << 63, 1.5, None, True])
def test_attempts_and_rounds_are_numbers(number):
    for name in ("attempt", "round"):
        with pytest.raises(FieldError, match=name):
            asked([site(i) for i in range(3)], **{name: number})


# ---- what the noise promises


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("least_sites", 2),
        ("colluding", 0),
        ("colluding", 2),
        ("noise_multiplier", 1e-9),
        ("clip", 0.0),
        ("rate", 1.5),
        ("unit", "image"),
        ("relation", "zero"),
        ("units", 10**18),
        ("denominator", math.nan),
        ("dimension", 0),
    ],
)
def test_terms_that_promise_nothing_are_refused(field, value):
    with pytest.raises(FieldError) as refused:
        replace(TERMS, **{field: value})
    assert refused.value.field in (field, "noise_multiplier")


@pytest.mark.parametrize(("m", "c"), [(3, 1), (10, 1), (10, 4), (40, 38)])
def test_honest_sites_of_the_least_roster_make_up_the_noise(m, c):
    terms = replace(TERMS, least_sites=m, colluding=c)
    counted = (m - c) * terms.noise.sigma**2 - 4
    assert math.sqrt(counted) * terms.grid == pytest.approx(
        terms.noise_multiplier * terms.clip, rel=1e-12
    )


def test_contributions_shorten_on_the_grid_and_nothing_is_refused():
    rows = torch.tensor(
        [[1.0, -1.0, 0.99999, 0.0], [math.nan, math.inf, -math.inf, 1e308]], dtype=torch.float64
    )
    steps = on_grid(rows, 1e-3)
    assert steps[0].tolist() == [1000, -1000, 999, 0]
    assert steps[1, :3].tolist() == [0, 0, 0]
    x = sums(3) / 7 * TERMS.grid
    assert bool((on_grid(x, TERMS.grid).abs() * TERMS.grid <= x.abs()).all())


def test_sums_wrap_instead_of_telling_that_they_are_large():
    keys, context = [site(i) for i in range(3)], asked([site(i) for i in range(3)])
    total = torch.full((60,), (1 << 63) - 1, dtype=torch.int64)
    shares = [share(total, k, context, context.roster) for k in keys]
    left = sum((s - total).numpy().view(np.uint64) for s in shares).view(np.int64)
    assert np.abs(left).max() < 10 * TERMS.noise.sigma * 2


def gaussian_weights(deviation, centre, integers):
    return np.exp(-((integers - centre) ** 2) / (2 * deviation**2))


@pytest.mark.parametrize("eta", [0.5, 0.7, 1.0])
def test_discrete_noise_is_rounded_continuous_noise_up_to_the_stated_residual(eta):
    wide, integers = 4.0, np.arange(-60.0, 61.0)
    step = 0.01
    rounded = np.zeros(len(integers))
    around = np.arange(-40, 41)
    for y in np.arange(-60, 60, step):
        weight = math.exp(-(y**2) / (2 * (wide**2 - eta**2)))
        near = np.round(y) + around  # y rounded by a discrete Gaussian around it
        chances = gaussian_weights(eta, y, near)
        chances /= chances.sum()
        inside = np.abs(near) <= 60
        rounded[(near[inside] + 60).astype(int)] += weight * chances[inside]
    rounded /= rounded.sum()
    discrete = gaussian_weights(wide, 0, integers)
    discrete /= discrete.sum()
    middle = np.abs(integers) <= 30
    e = 2 * math.exp(-2 * math.pi**2 * eta**2)
    assert (
        np.abs(np.log(rounded[middle] / discrete[middle])).max()
        <= math.log((1 + e) / (1 - e)) + 1e-9
    )


def test_two_levels_are_one_wide_discrete_gaussian():
    factor, one, other = 5, 6, 16.0
    integers = np.arange(-400, 401)
    pmf = np.zeros(len(integers))
    for x in range(-60, 61):
        pmf += math.exp(-(x**2) / (2 * one**2)) * gaussian_weights(other, factor * x, integers)
    pmf /= pmf.sum()
    wide = gaussian_weights(math.hypot(factor * one, other), 0, integers)
    smooth = one * other / math.hypot(factor * one, other)
    middle = np.abs(integers) <= 120
    gap = np.abs(np.log(pmf / (wide / wide.sum()))[middle]).max()
    assert gap <= 4 * math.exp(-2 * math.pi**2 * smooth**2) + 1e-9
    assert WideGaussianNoise().smoothness > 10
    assert 3 * WideGaussianNoise.FACTOR <= LARGEST


def test_the_residual_is_below_what_an_epsilon_prints():
    most = replace(TERMS, dimension=10**8, noise_multiplier=50.0)
    assert 0 < most.residual(10**5) < 1e-18 < epsilon_of_mu(0.02, 1e-5)
