"""Words of another party in a log or on a terminal: one line, no sequence that moves it, cut; on every path there."""

import ast
import json
import logging
import re
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedveil
from fedveil.cli import app
from fedveil.errors import FedVeilError, FieldError, cleaned
from fedveil.logs import LONGEST, MOST_LINES, escaping, logger, traced
from fedveil.tables import Table

SOURCE = Path(fedveil.__file__).parent
FORGED = "FedVeil: all is well"
HOSTILE = (
    f"a\r\n{FORGED}\x1b[2J\x1b]0;title\x07\x9b1m\u202egnol\u2066\u2028\u0085\x7f\x00" + "x" * 5000
)
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def harmless(text, lines=1):
    """Not one character that a terminal acts on; the forged line is no line of its own."""
    assert not UNSEEN.search(text), ascii(text)
    assert f"\n{FORGED}" not in text
    assert text.rstrip("\n").count("\n") < lines, text
    assert len(text) < 4000 * lines
    return True


def test_what_is_cleaned_can_be_read_and_is_cut():
    assert cleaned("Zürich\n\x1b\u202e") == "Zürich\\n\\x1b\\u202e"
    assert cleaned("x" * 9, 4) == "xxxx..."
    assert cleaned("a\nb", keep="\n") == "a\nb"
    assert harmless(cleaned(HOSTILE))


@pytest.mark.parametrize(
    "log",
    [
        lambda out: out.error("%s", HOSTILE),
        lambda out: out.error("%r, %d", [HOSTILE], 3),
        lambda out: out.error("%s", FieldError(HOSTILE, HOSTILE, "is not known")),
        lambda out: out.warning("%.1f of %s", 1.5, ValueError(HOSTILE)),
        lambda out: out.error("%(key)s", {"key": HOSTILE}),
    ],
)
def test_a_record_is_one_line(log, caplog):
    log(logger("fedveil.tests"))
    assert harmless(caplog.text)


def test_an_adapter_of_another_framework_is_escaped_too_and_once(caplog):
    inner = logging.getLogger("fedveil.tests.adapted")
    adapter = logging.LoggerAdapter(inner, {"run": 1})
    for _ in range(2):
        assert escaping(adapter) is adapter
    assert len(inner.filters) == 1
    adapter.error("%s", HOSTILE)
    assert harmless(caplog.text)


def test_a_long_traceback_is_cut_to_its_end():
    def deeper(left):
        if left:
            exec(f"deeper({left} - 1)", {"deeper": deeper})
        raise ValueError("the last line")

    try:
        deeper(200)
    except ValueError as error:
        lines = traced(error).split("\n")
    assert len([line for line in lines if line.strip(" |")]) == MOST_LINES
    assert "the last line" in lines[-1]


def test_further_lines_of_a_text_are_marked(caplog):
    logger("fedveil.tests").error(HOSTILE[:900])
    assert harmless(caplog.text, 2)


def test_a_traceback_is_marked_line_by_line(caplog):
    class Its(Exception):
        pass

    try:
        try:
            raise KeyError(HOSTILE)
        except KeyError as error:
            raise Its(HOSTILE) from error
    except Its as error:
        logger("fedveil.tests").error("it failed", exc_info=error)
        text = traced(error)
    assert harmless(text, 80)
    first, *rest = caplog.text.splitlines()
    assert first.endswith("it failed")
    assert all(line.startswith("    | ") for line in rest)
    assert harmless(caplog.text, 80)


def test_a_logger_of_a_framework_is_escaped_once():
    theirs = logging.getLogger("tests.of.a.framework")
    assert escaping(escaping(theirs)) is theirs
    assert len(theirs.filters) == 1


LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


@cache
def trees():
    """The syntax tree of every module of the library, by its path."""
    files = SOURCE.rglob("*.py")
    return {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text()) for file in files}


def test_every_log_call_goes_through_it():
    """Whoever logs has its logger from `logs`; one that a framework made is handed to `escaping` where it is used."""
    calls = 0
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(
                node.func, ast.Attribute | ast.Name
            ):
                continue
            called = ast.unparse(node.func)
            if called.rpartition(".")[2] == "getLogger" and file != "logs.py":
                assert file == "cli/shared.py", file  # sets its level
            receiver, _, level = called.rpartition(".")
            if level in LEVELS and "log" in receiver.lower():
                calls += 1
                assert receiver in {"_LOG", "log", "self._log"} or receiver.startswith(
                    "escaping("
                ), (file, receiver)
    assert calls > 25


def test_every_print_is_of_one_of_the_functions_that_escape():
    """Others print what is FedVeil's own, or was asked for: keys, hashes, paths that the user gave."""
    found = set()
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                called = ast.unparse(node.func)
                if called in {"print", "sys.stdout.write", "sys.stderr.write"} or called.endswith(
                    "onsole.print"
                ):
                    found.add(file)
    assert found <= {"cli/shared.py", "report/progress.py", "own.py", "errors.py"}


def test_refusals_and_tables_on_a_terminal(tmp_path):
    own = tmp_path / "theirs.toml"
    own.write_text(
        f"[privacy]\n{json.dumps(HOSTILE[:900])} = 1\n[{json.dumps(HOSTILE[:90])}]\nx = 2\n"
    )
    for command in (
        ["run", str(own)],
        ["advise", str(own)],
        ["plan", str(own)],
        ["run", HOSTILE[:90]],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert harmless(result.stderr, 40)
    own.write_text(f"# {HOSTILE[:900].replace(chr(10), '').replace(chr(13), '')}\n")
    assert harmless(CliRunner().invoke(app, ["presets", str(own)]).stdout, 4)


def test_a_table_holds_cells_of_others(capsys):
    shown = Table(("client", HOSTILE[:30]), [(HOSTILE[:200], 3)]).text(9999)
    assert not UNSEEN.search(shown)


def test_a_warning_that_quotes_data():
    from fedveil.engines.warning import Warnings

    said = []
    Warnings(None, None, said.append).say("kind", HOSTILE)
    assert harmless(said[0])
    assert len(said[0]) < 4 * LONGEST + 9


def test_a_refusal_names_its_field_and_value_escaped():
    refused = FieldError(HOSTILE, HOSTILE, "is not known")
    assert harmless(str(refused))
    assert refused.value == HOSTILE
    assert isinstance(refused, FedVeilError)


@pytest.mark.flower
@pytest.mark.parametrize("where", ["key", "value", "run"])
def test_a_run_writes_no_line_of_its_own_into_a_nodes_log(where, tmp_path, caplog):
    """Through the node's whole way: its configuration, and what the message says of itself."""
    pytest.importorskip("flwr")
    sys.path.insert(0, str(Path(__file__).parent / "node"))
    try:
        from node_kit import bundle, context, hash_of, request, run, site
    finally:
        sys.path.pop(0)
    from fedveil.engines.flower.grid import message_identity
    from fedveil.node.guard import answer

    content = bundle(name="x\\u001b[2J\\n", publisher=FORGED)
    policy = site(tmp_path / "node", f'apps = ["{hash_of(content)}"]\nprojects = ["none/of-these"]')
    if where != "run":
        policy.write_text(
            policy.read_text().replace('projects = ["none/of-these"]', 'client = "no_such:app"')
        )
    proposed = {
        "key": {f"privacy.{HOSTILE[:900]}": 1},
        "value": {"privacy.method": HOSTILE[:900]},
        "run": {},
    }
    caplog.set_level("INFO", "flwr")
    with message_identity(), warnings.catch_warnings():
        reply = answer(
            policy, request(), context(proposed[where]), run(federation=HOSTILE[:300]), content
        )
    assert reply.has_error()
    for record in caplog.records:
        assert harmless(caplog.handler.format(record), 80)
        assert "\n" not in record.getMessage()
