"""Page to sign: promises and measurements of a run, a comparison or an audit, and the evidence to check them.

`gather` reads folders. `sections` lists their contents in the order of a reader's questions. `page` writes the files for
people and for registries. `check` recomputes them elsewhere, from the report and the ledgers alone.
"""
