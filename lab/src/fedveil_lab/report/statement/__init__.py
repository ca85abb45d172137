"""A page to sign: what a run, a comparison or an audit promises and measured, with what it takes to check it.

`gather` reads folders, `sections` says what they show in the order of a reader's questions, `page` writes it for people
and for registries, `check` recomputes it elsewhere from the report and the ledgers alone.
"""
