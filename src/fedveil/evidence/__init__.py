"""Evidence of a run: its rounds and summary, a server's folder, ledgers in files, and checks of reports."""

from typing import TYPE_CHECKING

from fedveil.registry import lazy

_OFFERED = {  # by module; a whole module stands under its package
    "fedveil.evidence.agreement": "agree found_since promises_differ require_carried",
    "fedveil.evidence.books": "Book Books plain promise_of_sites read_books",
    "fedveil.evidence.carried": "CLIENT VALIDATION Carried Promises",
    "fedveil.evidence.check": "FORMAT REPORT Checked check_promises encoded rule_of set_values",
    "fedveil.evidence.costs": "NEIGHBOURS advice_tables plan_table reading_table spent_of used_of",
    "fedveil.evidence.kept": "KeptRound KeptShares kept_rounds",
    "fedveil.evidence.numerics": "NUMERICS machine numerics_of versions",
    "fedveil.evidence.opening": "opening_of_server parties_of terms_of",
    "fedveil.evidence.receipts": "check_receipts",
    "fedveil.evidence.releases": "release_csv release_rows",
    "fedveil.evidence.replayed": "replay",
    "fedveil.evidence.rows": (
        "FIGURES FORMERLY LAST MEASURES METRICS_CSV METRICS_FILE OF_TWO Row by_present_names last_rounds noise_of "
        "noise_over_rounds parse_row row_of rows_csv"
    ),
    "fedveil.evidence.server_folder": "ServerFolder run_of",
    "fedveil.evidence.standing": "rows_of summary_so_far",
    "fedveil.evidence.summary": "REPRODUCIBLE core_of write_result",
}

if TYPE_CHECKING:
    from fedveil.evidence.agreement import agree as agree
    from fedveil.evidence.agreement import found_since as found_since
    from fedveil.evidence.agreement import promises_differ as promises_differ
    from fedveil.evidence.agreement import require_carried as require_carried
    from fedveil.evidence.books import Book as Book
    from fedveil.evidence.books import Books as Books
    from fedveil.evidence.books import plain as plain
    from fedveil.evidence.books import promise_of_sites as promise_of_sites
    from fedveil.evidence.books import read_books as read_books
    from fedveil.evidence.carried import CLIENT as CLIENT
    from fedveil.evidence.carried import VALIDATION as VALIDATION
    from fedveil.evidence.carried import Carried as Carried
    from fedveil.evidence.carried import Promises as Promises
    from fedveil.evidence.check import FORMAT as FORMAT
    from fedveil.evidence.check import REPORT as REPORT
    from fedveil.evidence.check import Checked as Checked
    from fedveil.evidence.check import check_promises as check_promises
    from fedveil.evidence.check import encoded as encoded
    from fedveil.evidence.check import rule_of as rule_of
    from fedveil.evidence.check import set_values as set_values
    from fedveil.evidence.costs import NEIGHBOURS as NEIGHBOURS
    from fedveil.evidence.costs import advice_tables as advice_tables
    from fedveil.evidence.costs import plan_table as plan_table
    from fedveil.evidence.costs import reading_table as reading_table
    from fedveil.evidence.costs import spent_of as spent_of
    from fedveil.evidence.costs import used_of as used_of
    from fedveil.evidence.kept import KeptRound as KeptRound
    from fedveil.evidence.kept import KeptShares as KeptShares
    from fedveil.evidence.kept import kept_rounds as kept_rounds
    from fedveil.evidence.numerics import NUMERICS as NUMERICS
    from fedveil.evidence.numerics import machine as machine
    from fedveil.evidence.numerics import numerics_of as numerics_of
    from fedveil.evidence.numerics import versions as versions
    from fedveil.evidence.opening import opening_of_server as opening_of_server
    from fedveil.evidence.opening import parties_of as parties_of
    from fedveil.evidence.opening import terms_of as terms_of
    from fedveil.evidence.receipts import check_receipts as check_receipts
    from fedveil.evidence.releases import release_csv as release_csv
    from fedveil.evidence.releases import release_rows as release_rows
    from fedveil.evidence.replayed import replay as replay
    from fedveil.evidence.rows import FIGURES as FIGURES
    from fedveil.evidence.rows import FORMERLY as FORMERLY
    from fedveil.evidence.rows import LAST as LAST
    from fedveil.evidence.rows import MEASURES as MEASURES
    from fedveil.evidence.rows import METRICS_CSV as METRICS_CSV
    from fedveil.evidence.rows import METRICS_FILE as METRICS_FILE
    from fedveil.evidence.rows import OF_TWO as OF_TWO
    from fedveil.evidence.rows import Row as Row
    from fedveil.evidence.rows import by_present_names as by_present_names
    from fedveil.evidence.rows import last_rounds as last_rounds
    from fedveil.evidence.rows import noise_of as noise_of
    from fedveil.evidence.rows import noise_over_rounds as noise_over_rounds
    from fedveil.evidence.rows import parse_row as parse_row
    from fedveil.evidence.rows import row_of as row_of
    from fedveil.evidence.rows import rows_csv as rows_csv
    from fedveil.evidence.server_folder import ServerFolder as ServerFolder
    from fedveil.evidence.server_folder import run_of as run_of
    from fedveil.evidence.standing import rows_of as rows_of
    from fedveil.evidence.standing import summary_so_far as summary_so_far
    from fedveil.evidence.summary import REPRODUCIBLE as REPRODUCIBLE
    from fedveil.evidence.summary import core_of as core_of
    from fedveil.evidence.summary import write_result as write_result
else:
    __getattr__, __dir__, __all__ = lazy(__name__, _OFFERED)
