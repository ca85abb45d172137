"""Where each method runs: each cell names its test, or why it is refused."""

FLOWER, FLARE = "tests/fedveil/engines/flower", "tests/fedveil/engines/nvflare"
ENGINES = (
    "Flower in one process",
    "Flower, deployed",
    "FLARE's client runner",
    "FLARE's simulator",
    "FLARE's poc",
    "FLARE's swarm",
)
BIT, RUNS, NO = "bits", "runs", "*refused*"

SHUFFLED = (
    f"{FLOWER}/test_flower_engines.py::test_same_bits_as_embedded_though_replies_arrive_shuffled"
)
IFCA = "tests/deploy/test_ifca.py::test_two_groups_of_sites_get_a_model_each_over_a_superlink"
DEMO = "tests/deploy/test_demo.py::test_three_hospitals"
KILLED = "tests/deploy/test_kills.py::test_bits_that_are_stored_are_handed_over_again_for_nothing"
RUNNER = f"{FLARE}/test_nvflare_engines.py::test_same_bits_as_embedded_though_sites_answer_in_another_order"
SIMULATOR = f"{FLARE}/test_nvflare_engines.py::test_same_bits_in_flares_simulator"
EXECUTOR = f"{FLARE}/test_nvflare_executor.py::test_same_bits_and_ledgers_as_embedded"
TRAINED = f"{FLARE}/test_nvflare_executor.py::test_same_bits_in_flares_simulator"
SWARM = f"{FLARE}/test_nvflare_poc_swarm.py::test_three_real_peers_end_in_the_embedded_bits_each_having_aggregated_once"
NO_SWARM = f"{FLARE}/test_nvflare_swarm.py::test_what_does_not_hold_in_a_swarm_is_refused"
RULE = f"{FLARE}/test_nvflare_swarm.py::test_a_rule_alone_leaves_the_script"
RECORDS = f"{FLOWER}/test_flower_record.py::test_same_bits_and_ledgers_as_embedded"
SECURE = f"{FLOWER}/test_flower_secure.py::test_same_bits_and_ledgers_as_embedded"
POC = f"{FLARE}/test_nvflare_poc.py::test_a_job_of_production_ends_in_the_embedded_bits"
POC_VALIDATES = f"{FLARE}/test_nvflare_poc.py::test_a_site_that_only_validates_gives_the_embedded_best_and_last_model"
DEPLOYED = "tests/deploy/test_methods_deployed.py::test_a_method_on_three_supernodes_ends_in_the_embedded_bits"
THREE_LINES = f"{FLARE}/test_nvflare_recipes.py::test_three_lines_run_in_flares_simulator"

VALIDATED = (
    f"{FLARE}/test_nvflare_validating.py::test_losses_models_and_ledgers_are_the_embedded_engines"
)
VALIDATED_SIMULATOR = f"{FLARE}/test_nvflare_validating.py::test_last_and_best_model_of_flares_simulator_are_the_embedded_engines"
NO_BEST = f"{FLARE}/test_nvflare_swarm.py::test_protect_changes_the_peers_of_a_swarm"
STOPPED = f"{FLOWER}/test_flower_stopping.py::test_in_the_clear_it_stops_after_patience_and_returns_the_best_model"

CELLS = {
    "vanilla": (
        (BIT, SHUFFLED),
        (BIT, DEPLOYED),
        (BIT, RUNNER),
        (BIT, SIMULATOR),
        (BIT, POC),
        (f"{RUNS}: the rule", RULE),
    ),
    "global DP": (
        (BIT, SHUFFLED),
        (BIT, DEPLOYED),
        (BIT, RUNNER),
        (BIT, SIMULATOR),
        (BIT, POC),
        (f"{NO}: trusts the aggregator", NO_SWARM),
    ),
    "metric privacy": (
        (BIT, SHUFFLED),
        (BIT, DEPLOYED),
        (BIT, RUNNER),
        (BIT, SIMULATOR),
        (BIT, POC),
        (f"{NO}: trusts the aggregator", NO_SWARM),
    ),
    "SGA-LDP": (
        (BIT, SHUFFLED),
        (BIT, DEPLOYED),
        (BIT, RUNNER),
        (BIT, SIMULATOR),
        (BIT, POC),
        (BIT, SWARM),
    ),
    "group privacy, several hypotheses": (
        (BIT, SHUFFLED),
        (BIT, DEPLOYED),
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (f"{NO}: one model a peer", NO_SWARM),
    ),
    "IFCA": (
        (BIT, SHUFFLED),
        (BIT, IFCA),
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (f"{NO}: trusts the aggregator", NO_SWARM),
    ),
    "FedRE": (
        (BIT, SHUFFLED),
        (BIT, DEPLOYED),
        (BIT, EXECUTOR),
        (f"{BIT} (equal weights)", TRAINED),
        (f"{BIT} (equal weights)", POC),
        (f"{NO}: the peer that combines lacks public data", NO_SWARM),
    ),
    "record level, no trust": (
        (BIT, RECORDS),
        (BIT, DEPLOYED),
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (BIT, SWARM),
    ),
    "person level, no trust": (
        (BIT, RECORDS),
        (BIT, DEPLOYED),
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (BIT, SWARM),
    ),
    "trusted sum": (
        (BIT, RECORDS),
        (BIT, DEPLOYED),
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (f"{NO}: trusts every peer", NO_SWARM),
    ),
    "secure sum of records": (
        (BIT, SECURE),
        (RUNS, KILLED),  # on SuperNodes; nobody compared its bits there
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (BIT, SWARM),
    ),
    "secure sum of persons": (
        (BIT, SECURE),
        (RUNS, DEMO),
        (BIT, EXECUTOR),
        (BIT, TRAINED),
        (BIT, POC),
        (BIT, SWARM),
    ),
    "validation clients": (
        (RUNS, STOPPED),
        (BIT, DEPLOYED),
        (BIT, VALIDATED),
        (BIT, VALIDATED_SIMULATOR),
        (BIT, POC_VALIDATES),
        (f"{NO}: a metric is a release", NO_BEST),
    ),
    "a FLARE recipe, by one line": (
        ("", ""),
        ("", ""),
        ("", ""),
        (RUNS, THREE_LINES),
        (BIT, POC),
        (BIT, SWARM),
    ),
}


def table():
    """All cells, as Markdown."""
    lines = [f"| | {' | '.join(ENGINES)} |", "|---" * (len(ENGINES) + 1) + "|"]
    for method, cells in CELLS.items():
        lines.append(f"| {method} | {' | '.join(said for said, _ in cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
