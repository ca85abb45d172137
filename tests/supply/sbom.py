"""Write sbom.cdx.json: what the library needs, and what that needs, as a CycloneDX bill of materials: `make sbom`.

It is in the wheel, below .dist-info/sboms. Versions are the pins of constraints.txt; constraints-hashes.txt has the
hashes of their files. What another platform or another build of PyTorch brings with it is not in it.
"""

import json
import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SBOM = ROOT / "sbom.cdx.json"
SPEC = "1.6"


def pins():
    """Version by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    named = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in named}


def needs(name):
    """What a package needs here, without its extras."""
    every = map(Requirement, distribution(name).requires or [])
    needed = {
        canonicalize_name(r.name)
        for r in every
        if r.marker is None or r.marker.evaluate({"extra": ""})
    }
    return sorted(needed & set(pins()))


def closure(first):
    """Everything that is needed, by name, with its own needs."""
    found, waiting = {}, list(first)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = needs(name)
            waiting += found[name]
    return dict(sorted(found.items()))


def licence(name):
    """The licence that a package states: an SPDX expression, else a name."""
    metadata = distribution(name).metadata
    expression = metadata.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    classified = [v for v in metadata.get_all("Classifier", []) if v.startswith("License ::")]
    names = [value.split(" :: ")[-1] for value in classified]
    stated = (metadata.get("License") or "").splitlines()[:1]
    return [{"license": {"name": one}} for one in names or stated if one]


def made():
    """The bill of materials."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [version] = re.findall(
        r'__version__ = "([^"]+)"', (ROOT / "src/fedveil/__init__.py").read_text()
    )
    first = sorted(canonicalize_name(Requirement(one).name) for one in project["dependencies"])
    every, known = closure(first), pins()
    components = []
    for name in every:
        reference = f"pkg:pypi/{name}@{known[name]}"
        own = {"type": "library", "bom-ref": reference, "name": name, "version": known[name]}
        own["purl"] = reference
        if licence(name):
            own["licenses"] = licence(name)
        components.append(own)
    main = f"pkg:pypi/fedveil@{version}"
    about = {
        "type": "library",
        "bom-ref": main,
        "name": "fedveil",
        "version": version,
        "purl": main,
    }
    about["licenses"] = [{"expression": project["license"]}]
    edges = {main: first} | {f"pkg:pypi/{n}@{known[n]}": needed for n, needed in every.items()}
    dependencies = [
        {"ref": ref, "dependsOn": [f"pkg:pypi/{n}@{known[n]}" for n in needed]}
        for ref, needed in edges.items()
    ]
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": about},
        "components": components,
        "dependencies": dependencies,
    }


if __name__ == "__main__":
    SBOM.write_text(json.dumps(made(), indent=1) + "\n")
    sys.stdout.write(f"{len(made()['components'])} components\n")
