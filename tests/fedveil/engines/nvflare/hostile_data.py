"""A site's data module that raises with what it holds."""

from intruder_kit import SECRET, VALUE


def broken(site):
    raise RuntimeError(f"{SECRET} {VALUE}")
