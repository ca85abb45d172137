"""Files that survive crashes: locks, private files, atomic replacement, ledgers of runs, and kinds of folders."""

from typing import TYPE_CHECKING

from fedveil.registry import lazy

_OFFERED = {  # by module; a whole module stands under its package
    "fedveil.files.disk": "LOCK FolderLock InUseError append make_folder write_atomic",
    "fedveil.files.folders": (
        "AUDIT BEST CELLS COMPARISON CONFIG MODEL RUN RUN_ID SERVERS_LEDGER SPEC STUDY kind_of refuse_others "
        "refuse_strangers refuse_used remedy require_begun unused"
    ),
    "fedveil.files.ledgers": "SERVER SHARED LedgerFiles Ledgers LineStore",
    "fedveil.files.locked": "LEDGER LockedFile create lock private_folder read_private sync wait_for write_private",
}

if TYPE_CHECKING:
    from fedveil.files.disk import LOCK as LOCK
    from fedveil.files.disk import FolderLock as FolderLock
    from fedveil.files.disk import InUseError as InUseError
    from fedveil.files.disk import append as append
    from fedveil.files.disk import make_folder as make_folder
    from fedveil.files.disk import write_atomic as write_atomic
    from fedveil.files.folders import AUDIT as AUDIT
    from fedveil.files.folders import BEST as BEST
    from fedveil.files.folders import CELLS as CELLS
    from fedveil.files.folders import COMPARISON as COMPARISON
    from fedveil.files.folders import CONFIG as CONFIG
    from fedveil.files.folders import MODEL as MODEL
    from fedveil.files.folders import RUN as RUN
    from fedveil.files.folders import RUN_ID as RUN_ID
    from fedveil.files.folders import SERVERS_LEDGER as SERVERS_LEDGER
    from fedveil.files.folders import SPEC as SPEC
    from fedveil.files.folders import STUDY as STUDY
    from fedveil.files.folders import kind_of as kind_of
    from fedveil.files.folders import refuse_others as refuse_others
    from fedveil.files.folders import refuse_strangers as refuse_strangers
    from fedveil.files.folders import refuse_used as refuse_used
    from fedveil.files.folders import remedy as remedy
    from fedveil.files.folders import require_begun as require_begun
    from fedveil.files.folders import unused as unused
    from fedveil.files.ledgers import SERVER as SERVER
    from fedveil.files.ledgers import SHARED as SHARED
    from fedveil.files.ledgers import LedgerFiles as LedgerFiles
    from fedveil.files.ledgers import Ledgers as Ledgers
    from fedveil.files.ledgers import LineStore as LineStore
    from fedveil.files.locked import LEDGER as LEDGER
    from fedveil.files.locked import LockedFile as LockedFile
    from fedveil.files.locked import create as create
    from fedveil.files.locked import lock as lock
    from fedveil.files.locked import private_folder as private_folder
    from fedveil.files.locked import read_private as read_private
    from fedveil.files.locked import sync as sync
    from fedveil.files.locked import wait_for as wait_for
    from fedveil.files.locked import write_private as write_private
else:
    __getattr__, __dir__, __all__ = lazy(__name__, _OFFERED)
