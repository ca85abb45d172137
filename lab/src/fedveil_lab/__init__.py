"""FedVeil's laboratory: configurations, runs, comparisons, attacks, audits and reports.

Its public names are available under `fedveil` too: `fv.compare`, `fv.audit`, `fv.Config` and its subpackages.
"""
