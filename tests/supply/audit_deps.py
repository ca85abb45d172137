"""Ask an advisory database about every pinned package: `make audit-deps`.

pip-audit ends well where it finds no package at all, as behind a mirror that answers no advisories. Here what was not
audited is counted: exit code 0 only where every pin was audited and none has an advisory, 1 where one has, 3 where
some or all could not be asked about.
"""

import json
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
FOUND, UNASKED = 1, 3


def judged(report: str, pinned: int) -> tuple[int, list[str]]:
    """The exit code, and what to print, from pip-audit's JSON of so many pins; no JSON means that nobody answered."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return UNASKED, [f"nothing was audited: no advisory database answered, for {pinned} pins"]
    asked = [one for one in packages if "skip_reason" not in one]
    lines = []
    for one in asked:
        for advisory in one.get("vulns", []):
            fixed = ", ".join(advisory.get("fix_versions", [])) or "no version"
            lines.append(f"{one['name']} {one['version']}: {advisory['id']}, mended in {fixed}")
    found = len(lines)
    lines.append(f"{len(asked)} of {pinned} pins were audited: {found} advisories")
    if found:
        return FOUND, lines
    if len(asked) < pinned:
        lines.append(
            f"{pinned - len(asked)} pins were not audited: the index or database lacks them"
        )
        return UNASKED, lines
    return 0, lines


def pins() -> int:
    lines = CONSTRAINTS.read_text().splitlines()
    return len([Requirement(line) for line in lines if line and not line.startswith("#")])


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps"]
    command += ["--progress-spinner", "off", "--format", "json", "--requirement", CONSTRAINTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, lines = judged(done.stdout, pins())
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
