"""A site's data module that raises with what it holds."""

from hello_kit import dataset
from intruder_kit import SECRET, VALUE


def broken(site):
    raise RuntimeError(f"{SECRET} {VALUE}")


def one_broken(site):
    """Of a swarm's peers the second one raises, and has said it all to its own log before."""
    if site == "site-2":
        print(SECRET, VALUE)
        raise RuntimeError(f"{SECRET} {VALUE}")
    return dataset(site)
