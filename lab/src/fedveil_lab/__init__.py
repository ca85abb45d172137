"""FedVeil's laboratory: configurations, runs, comparisons, attacks, audits and reports.

What people use of it stands under `fedveil`, too: `fv.compare`, `fv.audit`, `fv.Config`, and its rooms.
"""
