"""What is installed: pins with hashes, a bill of materials, a reason for each dependency, and an honest audit."""

import json
import re
import tomllib
from importlib.metadata import version

import audit_deps
import hashes
import pytest
import sbom
from packaging.requirements import Requirement

PROJECT = tomllib.loads((sbom.ROOT / "pyproject.toml").read_text())["project"]
CORE = [Requirement(one).name for one in PROJECT["dependencies"]]
PAGE = sbom.ROOT / "docs" / "dependencies.md"


def test_every_pin_but_pytorch_has_hashes_and_no_place_is_named():
    text = hashes.HASHES.read_text()
    found = re.findall(
        r"^([\w.-]+==[\w.+-]+)(?: ;[^\\]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M
    )
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert [pin for pin, _ in found] == [line.split(" ")[0] for line in lines]

    def named(pin):
        name, _, number = pin.partition("==")
        return sbom.canonicalize_name(name), number

    assert {named(pin) for pin, _ in found} == {named(pin) for pin in hashes.pins()}
    assert "torch" not in {named(pin)[0] for pin, _ in found}
    assert "://" not in text


def test_the_bill_of_materials_is_of_the_pins_and_whole():
    held = json.loads(sbom.SBOM.read_text())
    assert (held["bomFormat"], held["specVersion"]) == ("CycloneDX", "1.6")
    parts = {one["bom-ref"]: one for one in held["components"]}
    pins = sbom.pins()
    assert all(one["version"] == pins[one["name"]] for one in parts.values())
    edges = {one["ref"]: set(one["dependsOn"]) for one in held["dependencies"]}
    main = held["metadata"]["component"]["bom-ref"]
    assert {parts[ref]["name"] for ref in edges[main]} == set(CORE)
    reached, waiting = set(), [main]
    while waiting:
        ref = waiting.pop()
        reached.add(ref)
        waiting += edges[ref] - reached
    assert reached == {main, *parts} == set(edges)
    if all(version(one["name"]).partition("+")[0] == one["version"] for one in parts.values()):
        assert held == sbom.made()


def test_each_core_dependency_has_a_reason_on_the_page():
    text = PAGE.read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", text, re.M)
    assert [name for name, _ in rows] == CORE
    assert all(len(reason) > 20 for _, reason in rows)
    held = json.loads(sbom.SBOM.read_text())
    assert f"{len(CORE)} packages" in text
    assert f"{len(held['components']) - len(CORE)} more" in text


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ("", audit_deps.UNASKED),  # offline: pip-audit prints no JSON
        ("{}", audit_deps.UNASKED),
        ({"a": {"skip_reason": "not found"}, "b": {"skip_reason": "not found"}}, 3),
        ({"a": {"vulns": []}, "b": {"skip_reason": "not found"}}, 3),
        ({"a": {"vulns": []}}, 3),  # a pin that is not in the answer was not audited
        ({"a": {"vulns": []}, "b": {"vulns": [{"id": "X-1", "fix_versions": ["2"]}]}}, 1),
        ({"a": {"vulns": []}, "b": {"vulns": []}}, 0),
    ],
)
def test_an_audit_is_green_only_where_every_pin_was_asked_about(report, code):
    if isinstance(report, dict):
        every = [{"name": name, "version": "1", **values} for name, values in report.items()]
        report = json.dumps({"dependencies": every})
    assert audit_deps.judged(report, 2)[0] == code
