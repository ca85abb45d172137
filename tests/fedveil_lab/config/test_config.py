"""Configuration: refusals name key, value and what is accepted; --set; the round trip through TOML."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.aggregation import FedAdam
from fedveil.clipping import QuantileClip
from fedveil.data import ALZHEIMER_HOMOGENEOUS
from fedveil.errors import FieldError
from fedveil.learning import LocalTraining
from fedveil_lab import grid
from fedveil_lab.config import ConfigError, load, parse, presets
from fedveil_lab.config.loading import assign
from fedveil_lab.config.tables import dumps
from fedveil_lab.config.variants import configure, variants_of
from fedveil_lab.runs.prepare import prepare

NOISED = {"method": "global", "noise_multiplier": 0.01}
TINY = {
    "name": "tiny",
    "rounds": 2,
    "data": {"name": "breast-cancer", "clients": 3},
    "model": {"name": "logistic"},
}


def tiny(**changes):
    return parse({**TINY, **changes})


def problem(values):
    with pytest.raises(ConfigError) as caught:
        parse(values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rouds": 3}, "rouds = 3: is no key here; did you mean 'rounds'?"),
        ({"rounds": "three"}, "rounds = 'three': must be a whole number"),
        ({"rounds": 0}, "rounds = 0: must be a whole number of at least 1"),
        ({"rounds": 2.0}, "rounds = 2.0: must be a whole number"),
        ({"workers": True}, "workers = True: must be a whole number"),
        ({"engine": "lokal"}, "engine = 'lokal': did you mean 'local'? accepted: flower, local"),
        ({"name": "a/b"}, "name = 'a/b': names a folder"),
        ({"model": {}}, "model.name is missing: it is needed"),
        ({"model": 3}, "model = 3: must be a table"),
        (
            {"model": {"name": "mlp", "hiden": [3]}},
            "model.hiden = [3]: is no key of 'mlp'; did you mean 'hidden'?",
        ),
        ({"model": {"name": "mlpp"}}, "model.name = 'mlpp': did you mean 'mlp'?"),
        ({"data": {"name": "digit", "clients": 3}}, "data.name = 'digit': did you mean 'digits'?"),
        (
            {"data": {"name": "digits", "clints": 3}},
            "data.clints = 3: is no key of 'digits'; did you mean 'clients'?",
        ),
        ({"data": {"name": "digits", "clients": 3, "partition": "id"}}, "did you mean 'iid'?"),
        (
            {"data": {"name": "digits", "clients": 3, "counts": [[1, "x"]]}},
            "data.counts[0][1] = 'x': must be a whole",
        ),
        (
            {"data": {"name": "alzheimer", "clients": 3, "resolution": "64"}},
            "data.resolution = '64': must be a whole",
        ),
        ({"clients_per_round": 4}, "clients_per_round = 4: must be 1 to 3"),
        ({"local": {"lr": -1.0}}, "local.lr = -1.0: must be a finite number above 0"),
        ({"local": {"epochs": 1.5}}, "local.epochs = 1.5: must be a whole number"),
        ({"local": {"epoch": 1}}, "local.epoch = 1: is no key of [local]; did you mean 'epochs'?"),
        ({"aggregator": {"name": "fedavgg"}}, "aggregator.name = 'fedavgg': did you mean 'fedavg"),
        ({"aggregator": {"name": "fedadam", "beta1": 2.0}}, "aggregator.beta1 = 2.0"),
        (
            {"aggregator": {"weighting": "size"}},
            "aggregator.weighting = 'size': accepted: examples, uniform",
        ),
        ({"privacy": {"method": "globl"}}, "privacy.method = 'globl': did you mean 'global'?"),
        (
            {"privacy": {**NOISED, "clip": -1.0}},
            "privacy.clip = -1.0: must be a finite number above 0",
        ),
        (
            {"privacy": {**NOISED, "ordr": "formal"}},
            "privacy.ordr = 'formal': is no key of 'global'; did you",
        ),
        (
            {"privacy": {**NOISED, "order": "frmal"}},
            "privacy.order = 'frmal': did you mean 'formal'?",
        ),
        (
            {"privacy": {**NOISED, "aggregator": "x"}},
            "privacy.aggregator = 'x': is no key of 'global'",
        ),
        (
            {"privacy": {"method": "metric", "budget": {"epsilon": 3.0}}},
            "privacy.budget.epsilon = 3.0: 'metric' as it",
        ),
        (
            {"privacy": {**NOISED, "budget": {"delta": 2.0}}},
            "privacy.budget.delta = 2.0: must be a number",
        ),
        (
            {"privacy": {**NOISED, "budget": {"leakage_cap": 2.0}}},
            "states no leakage to cap",
        ),
        ({"privacy": {"method": "fedre"}}, "data.region is missing"),
        (
            {"data": {"name": "digits", "clients": 3, "region": [3, 3, 5]}},
            "data.region = [3, 3, 5]: must be [top",
        ),
        (
            {"data": {"name": "digits", "clients": 3, "region": [[0, 0, 1, 1], [2]]}},
            "must be [top, left, bottom",
        ),
        (
            {"privacy": {"method": "group"}, "aggregator": {"name": "fedavg"}},
            "brings its own aggregation",
        ),
        ({"source": {"kind": "secret"}}, "source.kind = 'secret': did you mean 'secure'?"),
        (
            {"compare": {"settings": [{"method": "vanila"}]}},
            "compare.settings[0]: privacy.method = 'vanila'",
        ),
        (
            {"compare": {"settings": [{"method": "vanilla"}, {"method": "vanilla"}]}},
            "must differ from the others",
        ),
        (
            {"compare": {"settings": [{**NOISED, "match_sigma_of": "metric"}]}},
            "compare.settings[0].match_sigma_of = 'metric': must be the label of an earlier setting",
        ),
        ({"compare": {"equal_sigma": True}}, "needs a setting with the method 'metric'"),
    ],
)
def test_refusals_name_key_value_and_what_is_accepted(changes, expected):
    text = problem({**TINY, **changes})
    assert expected in text
    assert "pydantic" not in text


def test_every_problem_has_its_line():
    text = problem(
        {
            **TINY,
            "rouds": 1,
            "engine": "x",
            "local": {"lr": "fast", "epoch": 2},
            "data": {"name": "digits"},
        }
    )
    assert len(text.splitlines()) == 5


def test_missing_name_of_a_source_option_is_refused_by_name():
    with pytest.raises(FieldError, match=r"data\.path"):
        prepare(tiny(data={"name": "npz", "clients": 2}))


@pytest.mark.parametrize("name", list(presets()))
def test_presets_load_and_round_trip(coarse, name):
    config = load(name)
    again = parse(tomllib.loads(config.to_toml()))
    assert again == config
    assert again.fingerprint() == config.fingerprint()


def test_a_resolved_configuration_names_every_default():
    values = tomllib.loads(tiny(privacy={"method": "metric"}).to_toml())
    assert values["privacy"]["distance_on"] == "raw"
    assert values["aggregator"] == {"name": "fedavg", "weighting": "uniform"}
    assert values["local"]["epochs"] == LocalTraining().epochs


def test_the_alzheimer_preset_has_the_paper_s_counts_and_noise():
    config = load("alzheimer-quick")
    assert config.data.counts == ALZHEIMER_HOMOGENEOUS
    ratio = config.privacy.options["noise_multiplier"] * 389_860**0.5 / 4
    assert ratio == pytest.approx(0.01 * 6_517_476**0.5 / 4, rel=1e-3)
    labels = ["vanilla", "global DP", "metric privacy", "global (equal sigma)"]
    assert [v.label for v in variants_of(config)] == labels
    config = load("alzheimer-quick", ["compare.equal_sigma=false"])
    assert [v.label for v in variants_of(config)] == labels[:3]


def test_options_reach_the_core():
    config = tiny(
        aggregator={"name": "fedadam", "lr": 0.5},
        privacy={**NOISED, "clip": {"initial": 2.0}},
    )
    server = config.privacy.build(config.aggregator).server
    assert server.aggregator == FedAdam(lr=0.5)
    assert server.clip == QuantileClip(initial=2.0)
    assert parse(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize("said", [{}, {"least_sites": 0}, {"least_sites": 3}])
def test_the_sites_of_a_secure_sum_are_all_clients_unless_fewer_are_named(said):
    privacy = {"method": "record", "sum": "secure", "noise_multiplier": 1.0, "examples": 9, **said}
    found = tiny(data={"name": "digits", "clients": 5}, privacy=privacy)
    assert found.privacy.options["least_sites"] == (said.get("least_sites") or 5)


def test_set_takes_toml_values_and_bare_texts():
    values = {"local": {"lr": 1.0}, "compare": {"settings": [{"method": "vanilla"}]}}
    for assignment in (
        "local.lr=1e-3",
        "local.momentum=.5",
        "privacy.method=metric",
        'privacy.order="printed"',
        "data.counts=[[1, 2], [3, 4]]",
        "compare.equal_sigma = true",
        "compare.settings.0.method=global",
    ):
        assign(values, assignment)
    assert values == {
        "local": {"lr": 1e-3, "momentum": 0.5},
        "privacy": {"method": "metric", "order": "printed"},
        "data": {"counts": [[1, 2], [3, 4]]},
        "compare": {"settings": [{"method": "global"}], "equal_sigma": True},
    }


@pytest.mark.parametrize(
    "assignment",
    [
        "rounds",
        "=3",
        "a..b=1",
        "compare.settings.7.method=x",
        "compare.settings.x=1",
        "local.lr.x=1",
    ],
)
def test_set_refuses_what_leads_nowhere(assignment):
    values = {"local": {"lr": 1.0}, "compare": {"settings": [{"method": "vanilla"}]}}
    with pytest.raises(FieldError, match="--set"):
        assign(values, assignment)


def test_files_that_are_not_there_or_no_toml(tmp_path):
    with pytest.raises(FieldError, match="did you mean 'digits-compare'"):
        load("digit-compare")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(FieldError, match="not valid TOML"):
        load(broken)


def test_a_setting_may_have_its_own_training():
    where = 'compare.settings=[{method="vanilla", local={lr=0.5}}, {method="global", noise_multiplier=1.0}]'
    config = load("digits-compare", [where, "local.lr=2.0", "compare.equal_sigma=false"])
    found = {v.label: configure(config, v.label, v.setting).local for v in variants_of(config)}
    assert (found["vanilla"].lr, found["global"].lr) == (0.5, 2.0)
    assert found["vanilla"].epochs == found["global"].epochs == 2
    with pytest.raises(ConfigError, match=r"compare\.settings\[0\].*local\.rate"):
        load(
            "digits-compare",
            [
                'compare.settings=[{method="vanilla", local={rate=0.5}}]',
                "compare.equal_sigma=false",
            ],
        )


def test_a_comparison_checks_all_settings_before_the_first_run_and_names_the_one(coarse, tmp_path):
    misfit = '{label="late", method="record", examples=1000, epsilon=4.0, rate=0.5}'
    config = load(
        "digits-compare",
        [f'compare.settings=[{{method="vanilla"}}, {misfit}]', "compare.equal_sigma=false"],
    )
    with pytest.raises(FieldError, match=r"^settings\['late'\]: "):
        grid.compare(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_inherit_only_where_it_makes_sense():
    config = tiny(
        privacy={
            "method": "global",
            "noise_multiplier": 0.5,
            "budget": {"epsilon": 900.0, "participations": 2},
        },
        compare={
            "settings": [
                {"method": "vanilla"},
                {"method": "metric"},
                {"method": "group"},
                {**NOISED},
            ]
        },
    )
    vanilla, metric, group, same = (
        configure(config, v.label, v.setting).privacy for v in variants_of(config)
    )
    assert vanilla.options == {}
    assert metric.options["noise_multiplier"] == 0.5
    assert group.options["noise_multiplier"] == 5.0  # nu is not z
    assert (metric.budget.epsilon, metric.budget.participations) == (None, 2)
    assert same.budget.epsilon == 900.0


def test_a_derived_multiplier_makes_the_release_a_heuristic():
    config = tiny(privacy={**NOISED, "derived_from": "metric"})
    server = config.privacy.build(config.aggregator).server
    assert server.derived_from == "metric"
    assert not server.may_be_proven
    assert problem({**TINY, "privacy": {"method": "metric", "derived_from": "x"}}).startswith(
        "privacy.derived_from"
    )


VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=4))
def test_the_writer_is_read_back_by_the_standard_library(values):
    assert tomllib.loads(dumps(values)) == values


def test_the_writer_refuses_what_toml_has_no_word_for():
    assert dumps({"a": None, "b": 1}) == "b = 1\n"
    with pytest.raises(FieldError, match="cannot be written"):
        dumps({"a": {"b": object()}})


def test_what_is_written_is_what_was_read_also_where_a_comparison_names_no_setting():
    other = {"behaviour": "label-flip", "source": 1, "target": 7}
    config = parse(
        {
            "name": "written",
            "rounds": 2,
            "data": {"name": "digits", "clients": 6},
            "model": {"name": "logistic"},
            "privacy": {"method": "metric"},
            "compare": {"equal_sigma": True},
            "malicious": {"behaviour": "scaling", "share": 0.2, "of": other},
        }
    )
    again = parse(tomllib.loads(config.to_toml()))
    assert again.compare.equal_sigma
    assert again.malicious == config.malicious
    assert again.fingerprint() == config.fingerprint()
