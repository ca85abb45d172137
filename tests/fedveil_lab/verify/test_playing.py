"""Mechanisms in worst-case worlds: planted mistakes are caught, right claims are not, and runs share no state."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.verify import MechanismSteps, PrivacyClaim, player, playing, prove, screening
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.isolation import FreshProcesses, NoVerdict, RunOutcome, SameProcess
from fedveil_lab.verify.judged import COMPOSITION, INSPECTION, described_alone
from fedveil_lab.verify.playing import play, verify_mechanism
from fedveil_lab.verify.worlds import FIRST, LIBRARY, Sizes, library
from verify_kit import EXAMPLES, judged, module, worlds_of

WRONG, RIGHT = module("wrong").CASES, module("right").CASES
MEASURED = [name for name, case in WRONG.items() if "worst-case world" in case["by"]]
RUNS = 2500  # take 13 to 18 s of one core, each in a copy of a process
CLAIM = "eps=1 delta=1e-5 zero-out client total central"


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MEASURED)
def test_a_planted_mistake_is_caught_in_a_worst_case_world(name):
    assert judged("wrong", name, RUNS, seed=1).refuted


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_caught_by_its_description_where_it_says_so(name):
    case = WRONG[name]
    found = set()
    if "steps" in case:
        claim = PrivacyClaim.parse(case["claim"])
        found = {
            one.by
            for one in described_alone(name, claim, MechanismSteps.parse(case["steps"])).caught
        }
    assert found == {*case["by"].split(", ")} & {COMPOSITION, INSPECTION}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_claim_is_not_refuted_and_proven_where_its_steps_are_described(name):
    assert not judged("right", name, 1500, seed=0).refuted
    case = RIGHT[name]
    if "steps" in case:
        claim = PrivacyClaim.parse(case["claim"])
        assert prove(MechanismSteps.parse(case["steps"]), claim).epsilon <= claim.epsilon * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_each_is_caught_in_19_of_20_seeds(name):
    assert sum(judged("wrong", name, RUNS, seed).refuted for seed in range(20)) >= 19


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_claim_is_refuted_no_more_often_than_alpha(name):
    refuted = sum(judged("right", name, 1000, seed, alpha=0.1).refuted for seed in range(100))
    assert refuted <= 19  # 10 are allowed; three standard errors are 9


@pytest.mark.slow
def test_runs_in_copies_are_the_same_runs():
    claim, worlds = worlds_of(WRONG["divided_late"])
    effort = Effort(runs=300, seed=3)
    here = play(SameProcess(module("wrong").divided_late), worlds, claim, effort)
    apart = verify_mechanism(EXAMPLES / "wrong.py", "divided_late", claim, worlds, effort=effort)
    assert apart.measured == here.measured
    assert apart.world == here.world


@pytest.fixture
def file(tmp_path):
    """Writes a mechanism's file."""

    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(f"import time, os\nimport numpy as np\nCALLS = []\n\n\n{text}")
        return path

    return write


def test_no_state_reaches_another_run_and_unseeded_noise_is_fresh(file):
    path = file(
        "def counted(data, seed):\n    CALLS.append(seed)\n    return len(CALLS)\n\n\n"
        "def unseeded(data, seed):\n    return np.random.normal()\n"
    )
    with FreshProcesses(path, "counted") as counted, FreshProcesses(path, "unseeded") as unseeded:
        counted.hold("a", [np.zeros((1, 1))])
        unseeded.hold("a", [np.zeros((1, 1))])
        assert [counted.run("a", seed).numbers.tolist() for seed in range(3)] == [[1.0]] * 3
        assert len({unseeded.run("a", 0).numbers.item() for _ in range(5)}) == 5


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        ("raise ValueError('no such column')", "raised", "no such column"),
        ("time.sleep(60)", "hangs", "within"),
        ("os._exit(3)", "died", "without an answer"),
        ("return 'a text'", "unreadable", "returns text"),
        ("return {'a': 1.0, 'b': [2.0, 'c']}", "unreadable", r"text at \['b'\]\[1\]"),
        ("return np.zeros(60_000)", "unreadable", "50,000"),
        ("return None", "unreadable", "returns None"),
        ("return object()", "unreadable", "object"),
        ("return []", "ok", "no number"),
        ("return np.zeros(seed % 7 + 1)", "ok", "another shape"),
    ],
)
def test_what_does_not_answer_gets_no_verdict(file, body, kind, why):
    path = file(f"def mechanism(data, seed):\n    {body}\n")
    claim = PrivacyClaim.parse(CLAIM)
    worlds = library(claim, Sizes())
    with FreshProcesses(path, "mechanism", timeout=0.5) as processes:
        processes.hold("plain: in", worlds[0].inside)
        assert processes.run("plain: in", 0).kind == kind
    with pytest.raises(NoVerdict, match=why):
        verify_mechanism(path, "mechanism", claim, worlds, effort=Effort(runs=100, timeout=0.5))


def test_a_file_that_is_no_python_or_lacks_the_function_gets_no_verdict(file, tmp_path):
    claim = PrivacyClaim.parse(CLAIM)
    worlds = library(claim, Sizes())
    with pytest.raises(NoVerdict, match="mechanism"):
        verify_mechanism(file("x = 1\n"), "mechanism", claim, worlds, effort=Effort(runs=100))
    (tmp_path / "other.py").write_text("def broken(:\n")
    with pytest.raises(FieldError):
        verify_mechanism(tmp_path / "other.py", "mechanism", claim, worlds, effort=Effort(runs=100))


def test_what_a_run_writes_where_it_works_reaches_no_other_run(file):
    path = file(
        "def mechanism(data, seed):\n    known = os.path.exists('kept.npy')\n"
        "    np.save('kept.npy', np.zeros(1))\n    return float(known)\n"
    )
    with FreshProcesses(path, "mechanism") as processes:
        processes.hold("a", [np.zeros((1, 1))])
        assert [processes.run("a", seed).numbers.item() for seed in range(3)] == [0.0] * 3


class Counting(SameProcess):
    """Runs of a mechanism that keeps a counter between them, as in a file of its own."""

    def __init__(self):
        super().__init__(lambda data, seed: None)
        self.count = 0

    def run(self, world, seed):
        self.count += 1
        return RunOutcome("ok", "()", np.array([float(self.count % 2)]), "", "", 0.0)


def test_what_changes_from_run_to_run_refutes_no_claim():
    claim = PrivacyClaim.parse("eps=0.1 delta=0 zero-out client total central")
    worlds = library(claim, Sizes())
    for seed in range(3):
        found = play(Counting(), worlds, claim, Effort(runs=1000, seed=seed))
        assert not found.refuted, found.answer


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("return np.array([1 + 2j])", [1.0, 2.0]),
        ("return np.array([2**60 + 3])", [2.0**28, 3.0]),
        ("return np.uint64(7)", [7.0]),
        ("return {'b': [1, 2], 'a': (np.float32(3), np.ones((1, 1)))}", [3.0, 1.0, 1.0, 2.0]),
    ],
)
def test_numbers_of_every_kind_are_read_whole(file, body, numbers):
    path = file(f"def mechanism(data, seed):\n    {body}\n")
    with FreshProcesses(path, "mechanism") as processes:
        processes.hold("a", [np.zeros((1, 1))])
        assert processes.run("a", 0).numbers.tolist() == numbers


def rounds(data, seed):
    """Thirty rounds, of which each has the noise of epsilon 2."""
    rng = np.random.default_rng(seed)
    total = np.sum([np.clip(rows, -1, 1).sum() for rows in data])
    return [np.array([total + rng.normal(0, 1.9939)]) for _ in range(30)]


def test_many_rounds_do_not_judge_a_claim_of_one():
    claim = PrivacyClaim.parse("eps=2 delta=1e-5 zero-out client round central")
    with pytest.raises(NoVerdict, match="30"):
        play(SameProcess(rounds), library(claim, Sizes()), claim, Effort(runs=100))
    with pytest.raises(FieldError, match="one round"):
        claim.require_total("an app")


def test_the_number_that_tells_by_its_tail_alone_is_named():
    def mechanism(data, seed):
        rng = np.random.default_rng(seed)
        numbers = rng.normal(size=5)
        numbers[3] = rng.choice([-9.0, 9.0]) if len(data[-1]) else rng.choice([-1.0, 1.0])
        return numbers

    claim = PrivacyClaim.parse(CLAIM)
    found = play(SameProcess(mechanism), library(claim, Sizes()), claim, Effort(runs=600))
    assert found.refuted
    assert "number 4 of 5" in found.world

    def lengths(data, seed):
        return np.random.default_rng(seed).normal(size=1 + (len(data[-1]) > 0))

    found = play(SameProcess(lengths), library(claim, Sizes()), claim, Effort(runs=600))
    assert "(2,) with the unit, (1,) without" in found.world


@pytest.mark.parametrize("beside", [np.nan, np.inf, 1e308])
def test_a_number_that_is_none_or_huge_hides_no_other(beside):
    def mechanism(data, seed):
        return np.array([beside, np.random.default_rng(seed).normal(), len(data[-1])])

    claim = PrivacyClaim.parse(CLAIM)
    found = play(SameProcess(mechanism), library(claim, Sizes())[:3], claim, Effort(runs=200))
    assert found.refuted
    assert "number 3 of 3" in found.world


class Clock:
    """Seconds that pass with each run."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for room in (player, playing, screening):
            monkeypatch.setattr(room, "monotonic", lambda: self.now)

    def passing(self, seconds):
        """A runner of a mechanism without noise whose runs take so long, by their world."""
        clock = self

        class Slow(SameProcess):
            def run(self, world, seed):
                clock.now += seconds(world)
                return super().run(world, seed)

        return Slow(lambda data, seed: float(len(data[-1])) + np.random.default_rng(seed).normal())


def test_no_run_begins_once_the_seconds_are_over(monkeypatch):
    clock = Clock(monkeypatch)
    claim, said = PrivacyClaim.parse(CLAIM), []
    worlds = library(claim, Sizes())
    with pytest.raises(NoVerdict, match="290 are the fewest"):
        play(clock.passing(lambda _: 1.0), worlds, claim, Effort(), said.append)
    assert clock.now == 7
    assert said == []
    clock.now = 0.0
    slower = clock.passing(lambda _: 0.05 if clock.now < 45 else 1.0)
    found = play(slower, worlds, claim, Effort(), said.append)
    assert 60 <= clock.now <= 61
    assert "no run begins after 60 s" in said[0]
    assert any("60 s were over" in note for note in found.notes)
    clock.now = 0.0
    with pytest.raises(NoVerdict, match="60 s were over"):
        play(clock.passing(lambda _: 0.05 if clock.now < 5 else 5.0), worlds, claim, Effort())
    assert clock.now <= 65


def test_a_slow_attack_leaves_time_for_the_judgement(monkeypatch):
    clock = Clock(monkeypatch)
    quick = screening.best_attack

    def slow(*runs):
        clock.now += 2.0
        return quick(*runs)

    monkeypatch.setattr(screening, "best_attack", slow)
    claim = PrivacyClaim.parse(CLAIM)
    worlds = library(claim, Sizes())[:22]
    found = play(clock.passing(lambda _: 0.02), worlds, claim, Effort())
    assert clock.now <= 61
    assert found.measured.inside >= 20


@pytest.mark.slow
def test_answers_that_take_longer_do_not_refute_a_right_claim(monkeypatch):
    claim, refuted = PrivacyClaim.parse("eps=0.1 delta=0 zero-out client total central"), 0
    worlds = library(claim, Sizes())[:2]
    for seed in range(100):
        clock = Clock(monkeypatch)

        class Told(SameProcess):
            def run(self, world, seed, clock=clock):
                found = super().run(world, seed)
                clock.now += 0.3 if found.numbers[0] == world.endswith("in") else 0.01
                return found

        coin = Told(lambda data, seed: float(np.random.default_rng(seed).integers(2)))
        effort = Effort(seconds=60, seed=seed, alpha=0.1)
        refuted += play(coin, worlds, claim, effort).refuted
    assert refuted <= 19


def test_a_world_in_which_a_run_hangs_is_not_judged():
    class Hanging(SameProcess):
        def run(self, world, seed):
            if world.startswith("extreme counts: in"):
                return RunOutcome("hangs", "", np.zeros(0), "no answer within 1 s", "", 1.0)
            return super().run(world, seed)

    claim = PrivacyClaim.parse(CLAIM)
    quiet = Hanging(lambda data, seed: np.random.default_rng(seed).normal())
    found = play(quiet, library(claim, Sizes()), claim, Effort(runs=400))
    assert not found.refuted
    assert any("'extreme counts'" in note for note in found.notes)


def answered_with_rare_lies(data, seed):
    """Randomised response at epsilon 7 about the last client."""
    truth = len(data[-1]) > 0
    return float(truth ^ (np.random.default_rng(seed).random() < 1 / (1 + math.exp(7))))


def test_outputs_that_differ_whatever_the_seed_are_the_strongest_refutation():
    claim = PrivacyClaim.parse("eps=1 delta=1e-5 zero-out client total central")
    worlds = library(claim, Sizes())
    found = play(
        SameProcess(lambda data, seed: sum(len(rows) for rows in data)),
        worlds,
        claim,
        Effort(runs=200),
    )
    assert found.refuted
    assert "seeds" in found.caught[0].what
    claim = PrivacyClaim.parse("eps=7 delta=0 zero-out client total central")
    rare = play(SameProcess(answered_with_rare_lies), worlds, claim, Effort(runs=200))
    assert not rare.refuted  # right, although no lie was seen: so few runs bound no epsilon of 7
    assert [one.by for one in rare.caught] == [INSPECTION]
    constant = play(SameProcess(lambda data, seed: 1.0), worlds, claim, Effort(runs=200))
    assert not constant.refuted
    assert "out of reach" in constant.answer


def apart(inside, outside):
    """Data sets of each world that the other one lacks, however often they occur."""
    left, right = list(inside), []
    for rows in outside:
        same = [i for i, one in enumerate(left) if np.array_equal(one, rows, equal_nan=True)]
        if same:
            del left[same[0]]
        else:
            right.append(rows)
    return left, right


@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
@pytest.mark.parametrize("unit", ["client", "record", "person"])
def test_every_world_lies_in_the_claimed_relation(relation, unit):
    claim = replace(PrivacyClaim.parse(CLAIM), relation=relation, unit=unit)
    sizes = Sizes(clients=4, examples=3, columns=2)
    for world in library(claim, sizes):
        inside, outside = world.inside, world.outside
        changed, others = apart(inside, outside)
        assert len(changed) == 1, world.name  # one client's data differ
        [changed] = changed
        if unit == "client" and relation == "add/remove":
            assert others == []
        elif unit == "client":
            [other] = others
            assert (len(other) == 0) == (relation == "zero-out")
        else:
            [other] = others
            fewer = {"record": 1}.get(unit, len(LIBRARY[world.name](sizes).own))
            assert len(other) == len(changed) - fewer * (relation == "add/remove")
            if unit == "record" and relation != "add/remove":
                differ = [
                    not np.array_equal(a, b, equal_nan=True)
                    for a, b in zip(changed, other, strict=True)
                ]
                assert differ.count(True) == 1


def test_traps_can_be_left_out_and_the_first_cannot():
    claim = PrivacyClaim.parse(CLAIM)
    names = [one.name for one in library(claim, Sizes(), ["not a number", "infinite"])]
    assert {one.name for one in library(claim, Sizes())} - {*names} == {"not a number", "infinite"}
    for name in (FIRST, "nan"):
        with pytest.raises(FieldError):
            library(claim, Sizes(), [name])


def test_a_file_can_bring_worlds_of_its_own(file):
    path = file(
        "def worlds(relation, unit):\n    return {'mine ' + unit: ({'x': 1.0}, {'x': 0.0})}\n\n\n"
        "def mechanism(data, seed):\n    return data['x'] + np.random.default_rng(seed).normal(0, 0.1)\n"
    )
    claim = PrivacyClaim.parse(CLAIM)
    found = verify_mechanism(path, "mechanism", claim, [], effort=Effort(runs=400))
    assert found.refuted
    assert found.world.startswith("mine client")


def test_the_command_says_its_budget_first_and_ends_with_one_if_a_claim_is_caught(tmp_path):
    (tmp_path / "mine.py").write_text((EXAMPLES / "wrong.py").read_text())
    (tmp_path / "verify.toml").write_text(
        f'[verify]\nclaim = "{CLAIM}"\nclients = 8\n\n[verify.steps]\nnoise_multiplier = 0.4663\n'
    )
    command = [
        "verify",
        str(tmp_path / "mine.py:small_sensitivity"),
        "--runs",
        "300",
        "--out",
        str(tmp_path / "out"),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    planned = int(result.output.split()[0])  # before anything else
    stored = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert stored["refuted"] is True
    assert stored["proven"]["epsilon"] > 1
    assert {one["by"] for one in stored["caught"]} == {"worst-case world", "composition"}
    # the first look measures a run's time by 7 more; a world whose outputs are alike is left early
    assert planned / 2 < stored["effort"]["runs"] <= planned + 7
    assert (tmp_path / "out" / "verdict.md").is_file()
    few = CliRunner().invoke(app, [*command[:2], "--runs", "20"])
    assert few.exit_code == 2
    missing = CliRunner().invoke(app, ["verify", str(tmp_path / "no.py:f"), "--claim", CLAIM])
    assert missing.exit_code == 2


def test_a_verdict_that_is_not_refuted_is_never_called_true():
    found = judged("right", "gaussian_sum", 300, seed=1)
    assert not found.refuted
    assert math.isfinite(found.measured.best("epsilon").ceiling)
    assert found.answer.startswith(("not refuted", "out of reach"))


@pytest.mark.parametrize(
    "options",
    [
        ["--scores", "s.csv", "--rows", "runs", "--claim", CLAIM, "--steps", "noise_multiplier=1"],
        ["--rows", "runs"],
        ["--steps", "noise_multiplier=1", "--claim", CLAIM, "--rows", "runs"],
    ],
)
def test_an_option_that_the_subject_does_not_read_is_refused(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["verify", *options])
    assert result.exit_code == 2
    assert options[-2] in result.output
