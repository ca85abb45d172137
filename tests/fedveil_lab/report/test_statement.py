"""A page to sign: what it says, what it leaves open, and that a check elsewhere notices whatever was changed."""

import base64
import hashlib
import json
import random
import re
import shutil
from html import unescape
from pathlib import Path
from typing import get_args

import pytest
import yaml
from click.testing import CliRunner

from fedveil.accounting import Guarantee, Limits, Policy, Spend
from fedveil.accounting.bounds import GDP
from fedveil.accounting.guarantee import Trust, Unit, guarantee_values, of_round, promise_of_mu
from fedveil.accounting.ledger import Entry, Ledger, digest
from fedveil.cli import app
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger
from fedveil.errors import FieldError, LedgerError
from fedveil.evidence import Book, encoded, promise_of_sites, read_books, used_of
from fedveil_lab.config import parse
from fedveil_lab.games import GAMES, play
from fedveil_lab.grid import compare
from fedveil_lab.report.audits import show
from fedveil_lab.report.statement.check import check
from fedveil_lab.report.statement.document import ABSENT, WORDS, protected
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import PAGE, files_of, form_of, report_of, write_report
from fedveil_lab.report.statement.subject import Subject
from fedveil_lab.runs import run

REPORTS = Path(__file__).parents[3] / "results" / "reports"
ORDER = [
    "unit",
    "trust",
    "leaves",
    "accuracy",
    "attacked",
    "tuned",
    "budget",
    "policy",
    "origin",
    "approval",
]
# accepted values of the registry of deployments
TYPES = {
    "Summary statistics",
    "Machine learning model",
    "Dataset",
    "Synthetic data",
    "Interactive API",
    "SQL queries",
}
VARIANTS = {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"}
FIELDS = {
    "basic": "name data_curators intended_use data_product_type data_product_region description publication_date "
    "data_product_sector",
    "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
    "deployment_model": "model_name model_name_details actors release_type release_type_details data_source_type "
    "data_source_type_details access_type access_type_details",
    "administrative": "sources notes registry_authors",
}


def config(**changes):
    base = {
        "name": "tiny",
        "rounds": 2,
        "data": {"name": "breast-cancer", "clients": 3},
        "model": {"name": "logistic"},
    }
    return parse({**base, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison with a promise, a heuristic and neither; and a run that protects itself record by record."""
    path = tmp_path_factory.mktemp("statement")
    settings = [{"method": m} for m in ("vanilla", "global", "metric")]
    central = {"method": "global", "noise_multiplier": 4.0, "clip": 1.0}
    compare(config(privacy=central, compare={"settings": settings}), path / "compared", seeds=2)
    record = {"method": "record", "epsilon": 4.0, "clip": 1.0, "examples": 150, "rounds": 2}
    run(config(privacy=record, source={"kind": "secure"}), path / "record")
    return path


def gathered(*folders, ledgers=(), policy=None, people=None, setting=None):
    return gather(list(folders), list(ledgers), policy, people, setting=setting)


def page_of(subject):
    return files_of(subject)[PAGE].decode()


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("written")
    write_report(gathered(folder / "compared", folder / "record"), path)
    return path


@pytest.fixture
def made(folder, written, tmp_path):
    """A report of both, with ledgers in another place."""
    shutil.copytree(written, tmp_path / "report")
    shutil.copytree(folder, tmp_path / "elsewhere")
    return tmp_path


def wrong(made, ledgers="elsewhere"):
    return {
        one.what
        for one in check(made / "report" / "report.json", [made / ledgers])
        if one.holds is False
    }


def test_a_report_has_its_sections_in_order_and_says_what_nobody_covers(folder):
    report = json.loads(report_of(gathered(folder / "compared", folder / "record")).to_json())
    assert report["format"] == "fedveil report 2"
    assert [section["name"] for section in report["sections"]] == ORDER
    assert [one["setting"] for one in report["headline"]] == [
        "global",
        "metric",
        "record",
        "vanilla",
    ]
    sections = {section["name"]: section for section in report["sections"]}
    for name in ("budget", "policy", "approval"):
        assert {line["text"] for line in sections[name]["lines"]} == {ABSENT}
    assert {"membership", "inversion", "participation"} <= {
        line["label"].split(":")[0]
        for line in sections["attacked"]["lines"]
        if line["text"] == ABSENT
    }
    page = page_of(gathered(folder / "compared"))
    assert "://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert page.count(ABSENT) > 8


def test_odds_and_epsilons_are_those_of_the_ledgers(folder):
    report = report_of(gathered(folder / "compared", folder / "record"))
    said = {one["setting"]: one["text"] for one in report.headline}
    by_setting = {r["setting"]: r for r in report.evidence["runs"]}
    promise = by_setting["record"]["promises"]["worst client"]
    assert promise["epsilon"] == pytest.approx(4.0, rel=1e-6)
    assert "epsilon 4 at delta 1e-05" in said["record"]
    assert "epsilon" not in said["metric"]
    assert "epsilon" not in said["vanilla"]
    rate = re.search(r"at most ([\d.]+)% of the cases", said["record"])
    assert (
        promise["meaning"]["accuracy"]
        <= float(rate[1]) / 100
        < promise["meaning"]["accuracy"] + 0.001
    )


def test_a_heuristic_gets_a_card_without_parameters_and_with_the_reason(folder, tmp_path):
    write_report(gathered(folder / "compared", setting="metric"), tmp_path)
    card = yaml.safe_load((tmp_path / "card.yaml").read_text())["deployment"]
    assert "privacy_parameters" not in card["privacy_loss"]
    assert "variant_name" not in card["dp_variant"]
    assert "unprotected models" in card["privacy_loss"]["privacy_parameters_details"]
    assert "epsilon" not in (tmp_path / "card.yaml").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert not any(
        "epsilon" in p
        for r in report["evidence"]["runs"]
        if r["setting"] == "metric"
        for p in r["promises"]
    )


def test_a_card_has_the_fields_of_the_registry_and_invents_nothing(folder, tmp_path):
    people = tmp_path / "people.toml"
    people.write_text('curators = ["A: \\"quoted\\" # no comment"]\nsector = "Healthcare"\n')
    write_report(gathered(folder / "compared", people=people), tmp_path)
    card = yaml.safe_load((tmp_path / "card.yaml").read_text())
    assert set(card) == {"url_slug", "status", "tier", "deployment"}
    assert card["tier"] == 3
    for name, section in card["deployment"].items():
        assert set(section) <= set(FIELDS[name].split())
    deployed = card["deployment"]
    assert list(deployed)[1] == "privacy_loss"
    assert deployed["basic"]["data_product_type"] in TYPES
    assert deployed["dp_variant"]["variant_name"] in VARIANTS
    assert deployed["deployment_model"]["model_name"] == "Federated"
    assert deployed["basic"]["data_curators"] == ['A: "quoted" # no comment']
    assert deployed["privacy_loss"]["privacy_parameters"]["delta"] == 1e-5
    for where in (
        ("basic", "intended_use"),
        ("basic", "publication_date"),
        ("implementation", "justification"),
    ):
        assert deployed[where[0]][where[1]] == ABSENT


def test_a_card_rounds_its_epsilon_upwards_and_the_evidence_keeps_all_digits(folder, tmp_path):
    write_report(gathered(folder / "record"), tmp_path)
    card = yaml.safe_load((tmp_path / "card.yaml").read_text())
    assert card["deployment"]["privacy_loss"]["privacy_parameters"] == {
        "epsilon": 4.0,
        "delta": 1e-5,
    }
    [run] = json.loads((tmp_path / "report.json").read_bytes())["evidence"]["runs"]
    assert 0 < 4.0 - run["promises"]["worst client"]["epsilon"] < 1e-6


def test_what_was_not_changed_agrees_elsewhere(made):
    assert not wrong(made)
    result = CliRunner().invoke(
        app,
        [
            "report",
            "--verify",
            str(made / "report" / "report.json"),
            "--ledgers",
            str(made / "elsewhere"),
        ],
    )
    assert result.exit_code == 0, result.output


def of_record(made, change):
    [file] = (made / "elsewhere" / "record" / "ledger").glob("1.jsonl")
    file.write_text(change(file.read_text()))


def of_report(made, change):
    """Edit the report, and its digest with it."""
    file = made / "report" / "report.json"
    values = json.loads(file.read_bytes())
    change(values)
    file.write_bytes(encoded(values))


def smaller(values):
    for one in values["evidence"]["runs"]:
        for promise in one["promises"].values():
            if "epsilon" in promise:
                promise["epsilon"] *= 0.5


def smaller_table(values):
    values["sections"][0]["tables"][0]["rows"][1][5] = "0.1 at delta 1e-05"


def another_page(made):
    """Edit the page, and its digest and the report's with it."""
    page = made / "report" / "report.html"
    page.write_text(page.read_text().replace("epsilon 4 at", "epsilon 1 at"))
    of_report(
        made,
        lambda v: v["files"].update({"report.html": hashlib.sha256(page.read_bytes()).hexdigest()}),
    )


def flattered(values):
    values["headline"][0]["text"] = values["headline"][0]["text"].replace("epsilon ", "epsilon 0.")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: (m / "report" / "report.html").open("a").write(" "), "report.html"),
        (lambda m: (m / "report" / "card.yaml").open("a").write("#"), "card.yaml"),
        (lambda m: (m / "report" / "report.json").open("a").write("\n"), "report.json"),
        (lambda m: of_report(m, smaller), "promise"),
        (lambda m: of_report(m, flattered), "follows"),
        (lambda m: of_report(m, smaller_table), "follows"),
        (another_page, "report.html"),
        (lambda m: of_record(m, lambda t: t.replace('"round": 1', '"round": 3', 1)), "ledgers"),
        (lambda m: of_record(m, lambda t: t.replace('"round": 1', '"round":  1', 1)), "ledgers"),
        (lambda m: of_record(m, lambda t: t[: t[:-1].rindex("\n") + 1]), "ledgers"),
        (lambda m: of_record(m, lambda t: t[:-1]), "ledgers"),
        (lambda m: (m / "elsewhere" / "record" / "ledger" / "1.jsonl").unlink(), "ledgers"),
    ],
)
def test_a_changed_byte_is_noticed_wherever_it_is(made, change, what):
    change(made)
    assert any(what in one for one in wrong(made))
    where = [
        "report",
        "--verify",
        str(made / "report" / "report.json"),
        "--ledgers",
        str(made / "elsewhere"),
    ]
    assert CliRunner().invoke(app, where).exit_code == 1


def of_a_run(made, setting, change):
    """Edit the runs of a setting, and the report's digest with it."""

    def changed(values):
        for one in values["evidence"]["runs"]:
            if one["setting"] == setting:
                change(one)

    of_report(made, changed)


def forged(made, change):
    """Edit what a report was made from, and make all of its files again from that."""
    values = json.loads((made / "report" / "report.json").read_bytes())
    change(values)
    write_report(Subject.again(values, {}), made / "report")


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["promises"].update(
            {"server": {**run["promises"]["worst client"], "epsilon": 0.09}}
        ),
        lambda run: run["promises"].update({"server": run["promises"].pop("worst client")}),
        lambda run: run["promises"]["worst client"].update(epsilon=0.09),
        lambda run: (
            run["promises"].clear() or run["promises"].update({"worst client": {"status": "none"}})
        ),
        lambda run: run["ledgers"].pop(),
        lambda run: run.update(trust="central"),
        lambda run: run.update(bound=False),
    ],
    ids=[
        "one that nobody knows",
        "renamed",
        "a smaller one",
        "none",
        "a ledger left out",
        "another trust",
        "unbound",
    ],
)
def test_a_page_made_again_from_other_evidence_is_noticed(made, change):
    forged(
        made,
        lambda values: change(
            next(r for r in values["evidence"]["runs"] if r["setting"] == "record")
        ),
    )
    found = [
        one.what
        for one in check(made / "report" / "report.json", [made / "elsewhere"])
        if one.holds is False
    ]
    assert found
    assert all("record" in one for one in found)
    where = [
        "report",
        "--verify",
        str(made / "report" / "report.json"),
        "--ledgers",
        str(made / "elsewhere"),
    ]
    assert CliRunner().invoke(app, where).exit_code == 1


def test_a_client_left_out_of_page_and_ledgers_is_missed_by_the_first_line(made):
    """Of the run's parties, one less: report, list and ledger files agree with each other."""
    (made / "elsewhere" / "record" / "ledger" / "1.jsonl").unlink()

    def less(values):
        for made_of in values["evidence"]["runs"]:
            kept = [
                one
                for one in made_of["ledgers"]
                if (made_of["setting"], one["party"]) != ("record", "1")
            ]
            made_of["ledgers"] = kept

    forged(made, less)
    assert any("ledgers" in one for one in wrong(made))
    with pytest.raises(LedgerError, match="missing"):
        gathered(made / "elsewhere" / "record")


def test_a_promise_that_nobody_looked_at_is_no_pass(made):
    shutil.rmtree(made / "elsewhere" / "record")
    where = [
        "report",
        "--verify",
        str(made / "report" / "report.json"),
        "--ledgers",
        str(made / "elsewhere"),
    ]
    assert not wrong(made)
    assert CliRunner().invoke(app, where).exit_code == 5


def test_a_page_of_another_version_has_its_own_verdict(made):
    of_report(made, lambda values: values.update(form="another"))
    where = [
        "report",
        "--verify",
        str(made / "report" / "report.json"),
        "--ledgers",
        str(made / "elsewhere"),
    ]
    assert CliRunner().invoke(app, where).exit_code == 6
    checks = check(made / "report" / "report.json", [made / "elsewhere"])
    assert {one.holds for one in checks if one.kind == "promise"} == {True}
    assert {one.what for one in checks if one.holds is None} == {"report.html", "card.yaml"}
    of_report(made, smaller)
    assert CliRunner().invoke(app, where).exit_code == 1


def test_the_head_in_the_second_place_tells_a_shortened_ledger(folder, tmp_path):
    path = spent(tmp_path, "charite", 2)
    write_report(gathered(folder / "record", ledgers=[path]), tmp_path / "report")
    report, where = tmp_path / "report" / "report.json", [folder / "record", path]
    heads = {one.holds for one in check(report, where, tmp_path / "heads") if "head" in one.what}
    assert heads == {True}
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    write_report(gathered(folder / "record", ledgers=[path]), tmp_path / "report")
    assert not [one for one in check(report, where) if one.holds is False]
    assert [one.what for one in check(report, where, tmp_path / "heads") if one.holds is False] == [
        "data set charite: head"
    ]


def test_no_page_has_a_script_or_a_style_of_its_own(folder, told):
    for page in (page_of(gathered(folder / "compared")), told[1]):
        assert not re.search(r"<script|\sstyle=|\son\w+=|javascript:", page)
        assert page.count("<style>") == 1
        style = page[page.index("<style>") + 7 : page.index("</style>")]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"style-src 'sha256-{digest}'" in page


def test_without_ledgers_nothing_differs_and_nothing_passes(made):
    assert not {
        one.what for one in check(made / "report" / "report.json", []) if one.holds is False
    }
    assert (
        CliRunner()
        .invoke(app, ["report", "--verify", str(made / "report" / "report.json")])
        .exit_code
        == 5
    )


def test_any_byte_of_any_file_is_noticed(made):
    """Random bytes of the report's three files and of all ledgers, one at a time, in place and at the end."""
    draw = random.Random(33)
    ledgers = sorted(p for p in (made / "elsewhere").rglob("*.jsonl") if p.parent.name == "ledger")
    files = [*sorted((made / "report").iterdir()), *ledgers]
    assert len(files) > 10
    for file in files:
        raw = file.read_bytes()
        few = 12 if file.parent.name == "report" else 2
        for at in [*(draw.randrange(len(raw)) for _ in range(few)), len(raw)]:
            changed = bytes([(raw[at] if at < len(raw) else 0) ^ 1 << draw.randrange(8)])
            file.write_bytes(raw[:at] + changed + raw[at + 1 :])
            try:
                noticed = bool(wrong(made))
            except FieldError:  # no longer what can be read
                noticed = True
            assert noticed, (file.name, at, changed)
        file.write_bytes(raw)
    assert not wrong(made)


def test_a_folder_whose_ledger_does_not_give_its_summary_is_refused(folder, tmp_path):
    shutil.copytree(folder / "record", tmp_path / "record")
    file = tmp_path / "record" / "summary.json"
    values = json.loads(file.read_text())
    values["guarantees"]["worst client"]["epsilon"] = 1.0
    file.write_text(json.dumps(values))
    with pytest.raises(LedgerError):
        gathered(tmp_path / "record")


def test_a_run_of_an_earlier_version_is_reported_whatever_its_keys_are_called_now(folder, tmp_path):
    shutil.copytree(folder / "record", tmp_path / "record")
    file = tmp_path / "record" / "config.toml"
    file.write_text(file.read_text().replace('method = "record"', 'method = "renamed since"'))
    assert gathered(tmp_path / "record").name == "tiny"


@pytest.mark.parametrize("field", ["unfinished", "people", "setting", "missing"])
def test_what_cannot_be_reported_is_refused_by_name(folder, tmp_path, field):
    shutil.copytree(folder / "record", tmp_path / "record")
    people, ledgers, setting = None, [], None
    if field == "unfinished":
        (tmp_path / "record" / "summary.json").unlink()
    if field == "people":
        people = tmp_path / "people.toml"
        people.write_text('aproved_by = "X"')
    if field == "setting":
        setting = "nobody"
    if field == "missing":
        ledgers = [tmp_path / "nowhere"]

    def reported():
        subject = gathered(tmp_path / "record", ledgers=ledgers, people=people, setting=setting)
        write_report(subject, tmp_path / "report")

    with pytest.raises(FieldError) as refused:
        reported()
    assert refused.value.field == {"unfinished": "RUN", "missing": "--ledgers"}.get(
        field, f"--{field}"
    )


def spent(folder, name, count):
    """A data set's ledger with so many releases of mu 1."""
    begin_ledger(folder / "ledgers", name, "a test", head=folder / "heads")
    promise = Guarantee(
        unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(1.0)
    )
    with LifetimeLedger(
        folder / "ledgers", name, f"run of {name}", head=folder / "heads"
    ) as open_ledger:
        for i in range(count):
            entry = Entry(
                (i + 1, "protect"),
                0,
                f"{i:064x}",
                Spend(guarantee=promise, mechanism="gaussian", scale=(1.0,), sensitivity=1.0),
                "secure",
            )
            open_ledger.store(open_ledger.ledger.commit(entry))
    return folder / "ledgers" / f"{name}.jsonl"


def test_a_budget_is_told_without_names_or_sizes(tmp_path):
    paths = [spent(tmp_path, name, count) for name, count in (("charite", 4), ("mayo", 9))]
    (tmp_path / "policy.toml").write_text('trust = ["local"]\n[total]\nmu = 4.0\n')
    asked = [
        "report",
        "--budget",
        "--policy",
        str(tmp_path / "policy.toml"),
        "--ledgers",
        str(tmp_path / "ledgers"),
    ]
    output = CliRunner().invoke(app, asked).output
    assert "75" in output
    assert not {"charite", "mayo", "9", "run of"} & set(re.findall(r"[a-z ]+|\d+", output))
    books = read_books(paths).sets.values()
    [row] = used_of(
        [book.ledger for book in books], Policy(trust=("local",), total=Limits(mu=4.0))
    ).rows
    assert row == ("mu", "75%", "62.5%")
    assert CliRunner().invoke(app, asked[:2] + asked[4:]).exit_code == 2
    (tmp_path / "policy.toml").write_text('trust = ["local"]\n[total]\n')
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0
    assert "[total]" in said.output
    assert "--policy" not in said.output


def test_a_data_set_s_ledger_is_checked_up_to_where_the_report_knew_it(folder, tmp_path):
    path = spent(tmp_path, "charite", 2)
    (tmp_path / "policy.toml").write_text('trust = ["local"]\n[total]\nmu = 4.0\n')
    found = gathered(folder / "record", ledgers=[path], policy=tmp_path / "policy.toml")
    write_report(found, tmp_path / "report")
    where = [folder / "record", tmp_path / "ledgers"]
    assert not [c for c in check(tmp_path / "report" / "report.json", where) if c.holds is False]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    [bad] = [c.what for c in check(tmp_path / "report" / "report.json", where) if c.holds is False]
    assert "charite" in bad


def test_a_data_set_whose_ledger_is_given_and_of_which_the_report_says_nothing_is_no_pass(
    folder, tmp_path
):
    path = spent(tmp_path, "charite", 2)
    write_report(gathered(folder / "record"), tmp_path / "report")
    [left] = [
        one
        for one in check(tmp_path / "report" / "report.json", [folder / "record", path])
        if (one.holds, one.kind) == (None, "promise")
    ]
    assert "charite" in left.what


@pytest.mark.parametrize("name", ["server", "validation-ward"])
def test_the_worst_of_sites_is_theirs_whatever_their_data_sets_are_called(name):
    books = {}
    for party, mu in (("ward", 0.5), (name, 2.0)):
        spend = Spend(guarantee=of_round(GDP(mu), "local"), mechanism="gaussian", scale=(1.0,))
        ledger = Ledger("run", party)
        books[party] = Book(
            ledger, (ledger.commit(Entry((1, "protect"), 0, digest(()), spend, "secure")),)
        )
    [(whose, promise)] = promise_of_sites("local", books, 1e-5).items()
    assert whose.startswith("worst of 2 clients")
    assert promise["mu"] == 2.0


def test_every_status_of_a_promise_has_a_sentence():
    common = {"unit": "person", "relation": "add/remove", "trust": "secure sum", "text": "x"}
    proven = {**common, "status": "formal", "epsilon": 33.0, "delta": 1e-6, "vacuous": True}
    proven["meaning"] = {"accuracy": 0.97, "tpr_at_0.01": 0.9}
    assert "33" in protected(proven)
    assert "excludes nothing" in protected(proven)
    for status in ("none", "heuristic"):
        assert not re.search(r"\d", protected({**common, "status": status, "reason": "why"}))
    near = {
        **common,
        "unit": "parameter vector",
        "status": "formal",
        "mu_per_distance": 0.5,
        "text": "mu=0.5 per distance",
    }
    assert "no epsilon" in protected(near)


@pytest.mark.parametrize("unit", get_args(Unit))
def test_a_promise_to_each_unit_is_said_in_words_of_its_own(unit):
    promise = promise_of_mu(unit, "local", "zero-out", "total", 1.0)
    said = protected(guarantee_values(promise, 1e-5))
    others = [words for other, words in WORDS["units"].items() if other != unit]
    assert f"{WORDS['units'][unit]}, from" in said
    assert not [words for words in others if f"{words}, from" in said]
    assert WORDS["from"].keys() == WORDS["sees"].keys() == {*get_args(Trust)}


@pytest.mark.parametrize(
    "folder", sorted(p.parent for p in REPORTS.glob("*/report.json")), ids=lambda p: p.name
)
def test_the_committed_reports_agree_with_what_lies_beside_them(folder):
    """Their figures are those of the ledgers; their pages too, unless what pages look like was changed since."""
    ledgers = sorted(folder.glob("ledger*"))
    current = json.loads((folder / "report.json").read_bytes()).get("form") == form_of()
    found = check(folder / "report.json", ledgers)
    assert {one.holds for one in found if one.kind == "promise"} == {True if ledgers else None}
    assert {one.what for one in found if one.kind == "file" and one.holds is None} == (
        set() if current else {"report.html", "card.yaml"}
    )
    assert not [one for one in found if one.holds is False]
    result = CliRunner().invoke(
        app, ["report", "--verify", str(folder / "report.json"), *_given(ledgers)]
    )
    known = 0 if current else 6
    assert result.exit_code == (known if ledgers else 5)


def _given(ledgers):
    return [part for path in ledgers for part in ("--ledgers", str(path))]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A run whose clients protect their records, its audits with pictures and curves, canaries, and what people say."""
    path = tmp_path_factory.mktemp("attacked")
    record = {"method": "record", "epsilon": 4.0, "clip": 1.0, "examples": 20, "rounds": 1}
    values = {
        "data": {"name": "digits", "clients": 3, "holdout": 0.5},
        "rounds": 1,
        "privacy": record,
    }
    spec = config(**values)
    run(spec.model_copy(deep=True), path / "run")
    for name, options in {
        "inversion": {"attacks": ("analytic",), "replicates": 2},
        "membership": {"attacks": ("loss",), "replicates": 1},
        "participation": {"attacks": ("loss",), "replicates": 4},
    }.items():
        found = play(GAMES[name](spec, **options), path / name)
        if name == "inversion":  # whose pictures the report takes
            show(found, path / name)
    verdict = {
        "attack": "canaries",
        "figure": "mu, lower bound at 95%",
        "low": 0.5,
        "point": 0.5,
        "high": 0.5,
    }
    verdicts = [
        {**verdict, "setting": name, "details": {"ceiling": 2.0}}
        for name in ("m", "m: half the noise")
    ]
    (path / "canaries").mkdir()
    (path / "canaries" / "canaries.json").write_text(
        json.dumps({"canaries": 1000, "verdicts": verdicts})
    )
    said = {
        "personal_data": "no",
        "transport": "TLS",
        "access": "two",
        "approved_by": "A",
        "tuning": "none",
    }
    (path / "people.toml").write_text(
        "".join(f'{key} = "{value}"\n' for key, value in said.items())
    )
    return path


def reported(path, **how):
    folders = [
        path / name for name in ("run", "inversion", "membership", "participation", "canaries")
    ]
    return gather(folders, [], None, path / "people.toml", **how)


def test_an_audit_is_shown_with_curves_pictures_and_the_ceiling_of_its_bounds(attacked, tmp_path):
    found = reported(attacked, pictures=True)
    write_report(found, tmp_path / "report")
    [attacks] = [s for s in report_of(found).sections if s.name == "attacked"]
    games = {row[0] for row in attacks.tables[0].rows}
    assert games == {"inversion", "membership", "participation", "canaries"}
    assert {chart.title.split(":")[0] for chart in attacks.charts} == {
        "membership",
        "participation",
    }
    [canary] = [row for row in attacks.tables[0].rows if row[0] == "canaries"]
    assert canary[2:5] == ["m", "mu, lower bound at 95%; ceiling 2", "0.5"]
    assert any("is the most that so many" in line.text for line in attacks.lines)
    [picture] = attacks.pictures
    drawn = (attacked / "inversion" / "inversion-analytic.png").read_bytes()
    assert picture.digest == hashlib.sha256(drawn).hexdigest()
    page = (tmp_path / "report" / "report.html").read_text()
    [shown] = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    assert base64.b64decode(shown) == drawn
    assert not [
        one
        for one in check(tmp_path / "report" / "report.json", [attacked / "run"])
        if one.holds is False
    ]
    another = page.replace(shown, base64.b64encode(drawn + b" ").decode())
    (tmp_path / "report" / "report.html").write_text(another)
    wrong = {
        one.what
        for one in check(tmp_path / "report" / "report.json", [attacked / "run"])
        if one.holds is False
    }
    assert wrong == {"report.html", "what follows"}  # which has the page's digest


@pytest.fixture(scope="module")
def told(attacked):
    """The report of all that, and its page."""
    found = reported(attacked)
    return report_of(found), page_of(found)


def test_pictures_of_clients_images_are_left_out_unless_they_are_asked_for(told):
    report, page = told
    assert "data:image/png" not in page
    [attacks] = [s for s in report.sections if s.name == "attacked"]
    assert not attacks.pictures
    assert [
        line
        for line in attacks.lines
        if line.label == "inversion: pictures" and "--pictures" in line.text
    ]


# The section, and the line or the column of a table, in which each question of a data-protection officer is answered.
QUESTIONS = {
    "patient or hospital": ("unit", "unit"),
    "who sees what": ("trust", "the server sees"),
    "epsilon as odds": ("unit", "attacker is right"),
    "is the model personal data": ("leaves", "is the model itself personal data"),
    "metrics": ("leaves", "metrics after each round"),
    "logs": ("leaves", "logs"),
    "how the ledger is checked": ("origin", "check"),
    "transport": ("trust", "how messages were protected on their way"),
    "what the audit did not test": (
        "attacked",
        "attacks that nobody has thought of, and stronger ones",
    ),
    "who approved": ("approval", "approved by"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_line_of_the_page_answers_each_question_of_a_data_protection_officer(told, question):
    (name, where), (report, page) = QUESTIONS[question], told
    [section] = [s for s in report.sections if s.name == name]
    answers = [line.text for line in section.lines if line.label == where]
    for grid in section.tables:
        answers += [row[grid.header.index(where)] for row in grid.rows if where in grid.header]
    assert answers
    assert all(answers)
    assert (answers == [ABSENT]) == (question == "what the audit did not test")
    words = unescape(re.sub(r"<[^>]*>", "\n", page)).splitlines()
    assert {where, *answers} <= {word.strip() for word in words}
    assert "guesses right in at most" in report.headline[0]["text"]


def test_the_page_on_reports_names_every_key_that_people_fill():
    page = (Path(__file__).parents[3] / "docs" / "report.md").read_text()
    assert not [key for key in WORDS["people"] if f"`{key}`" not in page]
