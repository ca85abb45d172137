"""Keep the figures of a comparison: its summaries, its plot, and what made it.

Run: python studies/collect.py runs/alzheimer-quick --into results/alzheimer-quick --label fedavg \\
         --command "fedveil compare alzheimer-quick"
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from provenance import provenance


def main() -> None:
    """Copy figures and plot, with provenance and the resolved configuration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--commit", help="the commit that made the run, if it is not this one")
    args = parser.parse_args()
    summaries = json.loads((args.run / "comparison.json").read_text())
    made = provenance(summaries[0]["data"]["name"], sorted({s["seed"] for s in summaries}))
    made |= {"command": args.command, "versions": summaries[0]["versions"]}
    made["versions"] = {k: v.split("+")[0] for k, v in made["versions"].items()}
    made["machine"] = f"{made['machine'].split(',')[0]}, CPU, {summaries[0]['workers']} worker threads"
    if args.commit:
        made["commit"] = args.commit
    for summary in summaries:
        summary.pop("versions")
    args.into.mkdir(parents=True, exist_ok=True)
    record = {"provenance": made, "settings": summaries}
    (args.into / f"{args.label}.json").write_text(json.dumps(record, indent=1) + "\n")
    shutil.copyfile(args.run / "config.toml", args.into / f"{args.label}.toml")
    shutil.copyfile(args.run / "curves.png", args.into / f"{args.label}.png")


if __name__ == "__main__":
    main()
