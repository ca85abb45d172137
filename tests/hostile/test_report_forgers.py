"""Every field, element and file of reports of many kinds is edited: noticed, or its place is the author's word."""

import os
import random
import warnings

import pytest

from report_kit import KINDS, REPORTS, Forger

pytestmark = pytest.mark.filterwarnings("ignore")
QUICK = ("validation clients", "a data set and a policy", "Flower, sites' own ledgers")
MOST = int(
    os.environ.get("FORGERIES", "250")
)  # edits of one kind of one report; of more, so many are drawn


def made(name, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Forger(REPORTS[name](folder), folder)


def unnoticed(forger, kind, most, seed=0):
    """Edits that nobody notices, of so many; and how many were made."""
    edits = list(getattr(forger, kind)())
    if len(edits) > most:
        edits = random.Random(seed).sample(edits, most)
    missed = []
    for what, edit in edits:
        try:
            if not edit():
                missed.append(what)
        finally:
            forger.restore()
    return missed, len(edits)


@pytest.fixture(scope="module", params=QUICK)
def forger(request, tmp_path_factory):
    return made(request.param, tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("kind", KINDS)
def test_some_edits(forger, kind):
    missed, count = unnoticed(forger, kind, 4)
    assert count == 4
    assert not missed


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_every_edit(name, tmp_path, capsys):
    own, found, counts = made(name, tmp_path), {}, {}
    for kind in KINDS:
        found[kind], counts[kind] = unnoticed(own, kind, MOST)
    with capsys.disabled():
        print(
            f"\nreport, {name}: {sum(counts.values())} edits ({counts}); unnoticed {sum(map(len, found.values()))}"
        )
    assert not any(found.values()), {kind: some[:20] for kind, some in found.items() if some}
