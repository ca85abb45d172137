"""White-box tests of the noise: the right scale passes, slightly wrong ones fail the same test, in both directions."""

import copy
import ctypes
import hashlib
import itertools
import math
import os
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from core_kit import IMPOSSIBLE, PLAUSIBLE, variance_p
from fedveil.errors import FieldError
from fedveil.mechanisms import (
    EuclideanLaplaceNoise,
    GaussianNoise,
    ReproducibleSource,
    SecureSource,
    begin_normals,
    keyed_seed,
)
from fedveil.mechanisms import noise as noise_module
from fedveil.mechanisms import secure as secure_module

DRAWS = 200_000


def sources():
    return [
        pytest.param(lambda: ReproducibleSource(3), id="reproducible"),
        pytest.param(SecureSource, id="secure"),
    ]


def threshold(make):
    """Operating-system entropy differs between runs: one failure in a million runs is accepted."""
    return 1e-6 if make is SecureSource else PLAUSIBLE


@pytest.mark.parametrize("make", sources())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_has_its_deviation_within_two_percent(make, dtype):
    sigma = 2.5
    noise = GaussianNoise(sigma).sample(DRAWS, source=make(), dtype=dtype)
    assert noise.dtype == dtype
    assert variance_p(noise, sigma) > threshold(make)
    # the deviation of the estimated deviation is .16%, so 2% is twelve of them
    for wrong in (0.98 * sigma, 1.02 * sigma):
        assert variance_p(noise, wrong) < IMPOSSIBLE
    # a standard deviation is not a variance
    for wrong in (sigma**2, math.sqrt(sigma)):
        assert variance_p(noise, wrong) < IMPOSSIBLE


@pytest.mark.parametrize("make", sources())
def test_gaussian_is_normal_and_uncorrelated(make):
    noise = GaussianNoise(0.3).sample(DRAWS, source=make()).numpy()
    assert stats.kstest(noise, stats.norm(scale=0.3).cdf).pvalue > threshold(make)
    assert stats.kstest(noise, stats.norm(scale=0.31).cdf).pvalue < IMPOSSIBLE
    for lag in (1, 2, DRAWS // 2):  # the halves of a Box-Muller draw lie half a length apart
        correlation = np.corrcoef(noise[:-lag], noise[lag:])[0, 1]
        assert abs(correlation) * math.sqrt(DRAWS - lag) < 5.5


@pytest.mark.parametrize("make", sources())
def test_uniform(make):
    values = make().uniform(DRAWS).numpy()
    assert values.min() > 0
    assert values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > threshold(make)


@pytest.mark.parametrize("shape", [1.0, 2.0, 50.0])
def test_gamma(shape):
    source = ReproducibleSource(1)
    draws = [source.gamma(shape) for _ in range(2000)]
    assert stats.kstest(draws, stats.gamma(shape).cdf).pvalue > PLAUSIBLE
    assert stats.kstest(draws, stats.gamma(shape, scale=1.25).cdf).pvalue < IMPOSSIBLE


@pytest.mark.parametrize("make", sources())
@pytest.mark.parametrize(("n", "epsilon"), [(1, 2.0), (3, 0.5), (40, 7.0)])
def test_laplace_radius_and_direction(make, n, epsilon):
    mechanism, source = EuclideanLaplaceNoise(epsilon), make()
    noise = torch.stack([mechanism.sample(n, source=source) for _ in range(1500)]).numpy()
    radius = np.linalg.norm(noise, axis=1)
    law = lambda e: stats.gamma(n, scale=1 / e).cdf  # noqa: E731
    assert stats.kstest(radius, law(epsilon)).pvalue > threshold(make)
    factor = 1.6 if n == 1 else 1.25  # one radius of n = 1 says little about the scale
    for wrong in (
        epsilon / factor,
        epsilon * factor,
    ):  # too much noise and too little fail the same test
        assert stats.kstest(radius, law(wrong)).pvalue < IMPOSSIBLE
    # the direction: mean 0, covariance I / n, and in three dimensions (Archimedes) a uniform height
    direction = noise / radius[:, None]
    assert np.abs(direction.mean(0)).max() < 5 / math.sqrt(1500 * n)
    assert np.abs(direction.T @ direction / 1500 - np.eye(n) / n).max() < 6 / (
        n * math.sqrt(1500 / 2)
    )
    if n == 3:
        for column in direction.T:
            assert stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue > threshold(make)
    # radius and direction are independent
    assert abs(np.corrcoef(radius, direction[:, 0])[0, 1]) < 5.5 / math.sqrt(1500)


def test_laplace_in_one_dimension_is_laplace():
    source = ReproducibleSource(5)
    noise = [float(EuclideanLaplaceNoise(2.0).sample(1, source=source)[0]) for _ in range(1500)]
    assert stats.kstest(noise, stats.laplace(scale=0.5).cdf).pvalue > PLAUSIBLE
    assert stats.kstest(noise, stats.laplace(scale=0.75).cdf).pvalue < IMPOSSIBLE


def test_laplace_in_high_dimension_has_the_expected_length():
    # E[radius] = n / epsilon, with relative deviation 1 / sqrt(n) = .1% here
    noise = EuclideanLaplaceNoise(4.0).sample(
        1_000_000, source=ReproducibleSource(0), dtype=torch.float32
    )
    assert float(noise.double().norm()) == pytest.approx(250_000, rel=0.005)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), "1", None, True])
def test_bad_scales_are_refused(scale):
    with pytest.raises(FieldError, match="sigma"):
        GaussianNoise(scale)
    with pytest.raises(FieldError, match="epsilon"):
        EuclideanLaplaceNoise(scale)


@pytest.mark.parametrize("mechanism", [GaussianNoise(1.0), EuclideanLaplaceNoise(1.0)])
def test_a_source_and_a_size_are_needed(mechanism):
    for size in (0, -1, 2.5, True):
        with pytest.raises(FieldError, match="size"):
            mechanism.sample(size, source=ReproducibleSource(0))
    for source in (None, 7, torch.Generator()):
        with pytest.raises(FieldError, match="source"):
            mechanism.sample(3, source=source)


# ---- streams


def draw(source, n=8):
    return source.normal(n).tolist()


KEY = (3, "protect", 7, 0)


def test_the_same_key_gives_the_same_bits():
    assert draw(ReproducibleSource(1).child(*KEY)) == draw(ReproducibleSource(1).child(*KEY))
    parent = ReproducibleSource(1)
    parent.normal(100)  # what the parent has drawn does not move its children
    assert draw(parent.child(*KEY)) == draw(ReproducibleSource(1).child(*KEY))


def test_every_part_of_the_key_and_the_seed_matter():
    keys = [
        KEY,
        (4, "protect", 7, 0),
        (3, "combine", 7, 0),
        (3, "protect", 8, 0),
        (3, "protect", 7, 1),
        ("3", *KEY[1:]),
    ]
    drawn = [tuple(draw(ReproducibleSource(1).child(*key))) for key in keys]
    drawn += [tuple(draw(ReproducibleSource(2).child(*KEY))), tuple(draw(ReproducibleSource(1)))]
    assert len(set(drawn)) == len(drawn)


def test_the_noise_stream_is_not_the_stream_of_training():
    generator = torch.Generator().manual_seed(keyed_seed("train", 1, *KEY))
    other = torch.randn(8, generator=generator, dtype=torch.float64).tolist()
    assert draw(ReproducibleSource(1).child(*KEY)) != other


@pytest.mark.parametrize("make", sources())
def test_successive_draws_and_children_differ(make):
    source = make()
    assert draw(source) != draw(source)
    assert source.uniform(8).tolist() != source.uniform(8).tolist()
    assert draw(source.child(1)) != draw(source.child(2))


def test_secure_children_differ_even_under_one_key():
    source = SecureSource()
    assert draw(source.child(*KEY)) != draw(source.child(*KEY))


@pytest.mark.parametrize("make", sources())
def test_a_source_is_never_copied(make):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            attempt(make())


def test_the_secure_source_has_no_seed():
    with pytest.raises(FieldError, match="no seed"):
        SecureSource(seed=1)
    for threads in (0, -1, 1.5, "2", True):
        with pytest.raises(FieldError, match="threads"):
            SecureSource(threads=threads)
    assert SecureSource.deployable
    assert not ReproducibleSource.deployable


def test_the_seed_is_not_printed():
    assert "12345" not in repr(ReproducibleSource(12345))


@pytest.mark.parametrize("seed", [1.5, "1", None, True])
def test_the_seed_is_an_integer(seed):
    with pytest.raises(FieldError, match="seed"):
        ReproducibleSource(seed)


@given(st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=4))
def test_a_keyed_seed_fits_a_generator(key):
    assert 0 <= keyed_seed(*key) < 2**32
    assert keyed_seed(*key) == keyed_seed(*key)


def test_a_keyed_seed_is_the_same_everywhere():
    # the last 32 of the first 128 bits of sha256("[('str', 'a'), ('int', 1)]")
    found = hashlib.sha256(b"[('str', 'a'), ('int', 1)]").hexdigest()[24:32]
    assert keyed_seed("a", 1) == int(found, 16)


def test_streams_of_a_large_study_do_not_collide():
    # 32-bit seeds would give about 10 pairs among these 300,000 clients and rounds the same noise
    firsts = {
        ReproducibleSource(0, _key=(str(client), round_, "protect", 0)).bits(1).item()
        for client in range(300)
        for round_ in range(100)
    }
    assert len(firsts) == 30_000


# ---- noise in place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_in_place_has_the_bits_of_noise_at_once(monkeypatch, dtype):
    monkeypatch.setattr(
        noise_module, "_BLOCK", 7
    )  # odd: a float32 draw may end in the middle of a word
    vector = torch.randn(100, dtype=dtype)
    expected = vector + GaussianNoise(2.5).sample(100, source=ReproducibleSource(1), dtype=dtype)
    result = GaussianNoise(2.5).add_to(vector, source=ReproducibleSource(1))
    assert result is vector
    assert torch.equal(vector, expected)


@pytest.mark.parametrize("make", sources())
def test_noise_in_place_has_its_deviation(monkeypatch, make):
    monkeypatch.setattr(noise_module, "_BLOCK", DRAWS // 8)
    noise = (
        GaussianNoise(2.5).add_to(torch.full((DRAWS,), 10.0, dtype=torch.float64), source=make())
        - 10
    )
    assert variance_p(noise, 2.5) > threshold(make)
    assert variance_p(noise, 0.98 * 2.5) < IMPOSSIBLE
    assert variance_p(noise, 1.02 * 2.5) < IMPOSSIBLE
    assert len(set(noise.tolist())) > 0.9 * DRAWS  # no block came twice; on a grid some numbers do


def test_noise_in_place_holds_no_second_vector():
    vector = torch.zeros(4 << 20)
    tracemalloc.start()  # follows numpy, which both sources draw with
    GaussianNoise(1.0).add_to(vector, source=SecureSource())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < vector.nbytes / 2
    with pytest.raises(FieldError, match="source"):
        GaussianNoise(1.0).add_to(vector, source=None)


# ---- the keystream

ENTROPY = bytes(range(200, 232))


@pytest.fixture
def known_key(monkeypatch):
    """Every secure source has the same key and counter: what no deployment has."""
    monkeypatch.setattr(os, "urandom", lambda size: ENTROPY[:size])


def keystream(blocks, start):
    """AES-256 of a counter, block by block, modulo 2^128."""
    encryptor = Cipher(algorithms.AES(ENTROPY), modes.ECB()).encryptor()
    counters = b"".join(((start + i) % (1 << 128)).to_bytes(16, "big") for i in range(blocks))
    return encryptor.update(counters)


@pytest.mark.parametrize("start", [int.from_bytes(ENTROPY[:16], "big"), (1 << 128) - 3])
def test_bits_are_the_keystream_and_each_block_is_used_once(known_key, monkeypatch, start):
    monkeypatch.setattr(
        os, "urandom", lambda size: ENTROPY if size == 32 else start.to_bytes(16, "big")
    )
    source = SecureSource()
    drawn = [
        source.bits(size).tolist() for size in (4, 3, 0, 2)
    ]  # an odd draw leaves half a block, which is dropped
    expected = np.frombuffer(keystream(5, start), dtype=np.int64) & np.int64((1 << 63) - 1)
    assert drawn == [expected[:4].tolist(), expected[4:7].tolist(), [], expected[8:10].tolist()]


def test_small_draws_are_pieces_of_the_keystream(known_key):
    start = int.from_bytes(ENTROPY[:16], "big")
    expected = np.frombuffer(keystream(3000, start), dtype=np.int64) & np.int64((1 << 63) - 1)
    sizes = [2, 300, 512, 514, 2, 1000, 2, 4, 512, 510, 2, 2000, 6] + [2] * 300
    source = SecureSource()
    drawn = np.concatenate([source.bits(size).numpy() for size in sizes])
    assert np.array_equal(drawn, expected[: sum(sizes)])


def test_normals_are_box_mullers_of_the_keystream(known_key):
    start = int.from_bytes(ENTROPY[:16], "big")
    for dtype, integers, bits in ((torch.float32, np.int32, 31), (torch.float64, np.int64, 63)):
        raw = keystream(16, start)
        u = np.abs(np.frombuffer(raw[:40], dtype=np.int64).astype(np.float64)) * 2.0**-63
        angle = (
            np.pi
            * np.frombuffer(raw[40 : 40 + 5 * integers().itemsize], dtype=integers)
            * 2.0**-bits
        )
        radius = np.sqrt(-2 * np.log(u))
        expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:9]
        tolerance = 1e-6 if dtype == torch.float32 else 1e-12
        np.testing.assert_allclose(
            SecureSource().normal(9, dtype), expected, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 65_536, 65_537, 300_001])
def test_threads_draw_the_same_bits(known_key, dtype, size):
    draws = []
    for threads in (1, 2, 3):
        source = SecureSource(threads=threads)
        draws.append((source.normal(size, dtype), source.normal(size, dtype)))
    for first, second in draws[1:]:
        assert torch.equal(first, draws[0][0])
        assert torch.equal(second, draws[0][1])
    assert not torch.equal(draws[0][0], draws[0][1])


@pytest.mark.parametrize("threads", [1, 2])
def test_no_counter_is_encrypted_twice(monkeypatch, threads):
    used, write = [], secure_module._Stream.write

    def noted(stream, raw, length, first):
        used.append((id(stream), first, first + -(-length // 16)))
        write(stream, raw, length, first)

    monkeypatch.setattr(secure_module._Stream, "write", noted)
    source = SecureSource(threads=threads)
    assert source.child(1)._threads == threads

    def draw_a_lot():
        for size in (1, 65_535, 200_000):
            source.normal(size, torch.float32)
            source.normal(size)
            source.uniform(size)
            source.bits(size)
            source.gamma(3.0)

    together = [threading.Thread(target=draw_a_lot) for _ in range(3)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    children = [source.child(1), source.child(1)]
    for child in children:
        child.normal(1000)
    streams = {stream for stream, _, _ in used}
    assert (
        3 <= len(streams) <= 5
    )  # the children's, and the source's (threads that come first at once may key one each)
    for stream in streams:
        intervals = sorted((first, last) for s, first, last in used if s == stream)
        assert all(last <= first for (_, last), (first, _) in itertools.pairwise(intervals))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads of earlier tests
@pytest.mark.parametrize("by", ["Python", "C"])
def test_a_forked_process_draws_from_a_key_of_its_own(monkeypatch, by):
    if by == "Python":
        monkeypatch.setattr(os, "getpid", lambda: 7)  # process ids come again
    fork = (
        os.fork if by == "Python" else ctypes.PyDLL(None).fork
    )  # which tells Python nothing, and keeps its lock
    source = SecureSource()
    source.bits(1)
    receive, send = os.pipe()
    child = fork()
    if child == 0:
        os.write(send, source.bits(4).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(receive, 64), dtype=np.int64).tolist()
    os.close(receive)
    os.close(send)
    assert len(theirs) == 4
    assert theirs != source.bits(4).tolist()


# ---- begun before it is asked for


@pytest.mark.parametrize("asked", [[100], [30, 70], [30, 50], [60, 60], []])
def test_what_was_begun_has_the_bits_of_what_is_drawn_when_asked_for(asked):
    def draws(source):
        child = source.child("server", 3)
        return torch.cat(
            [
                *(child.normal(size) for size in asked),
                child.uniform(5),
                child.normal(4, torch.float32),
            ]
        )

    begun = ReproducibleSource(1)
    begin_normals(begun, 100, "server", 3)
    assert torch.equal(draws(begun), draws(ReproducibleSource(1)))
    assert torch.equal(draws(begun), draws(ReproducibleSource(1)))  # a second child begins anew
    begin_normals(SecureSource(), 100, "server", 3)  # draws when it is asked
