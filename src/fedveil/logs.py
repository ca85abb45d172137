"""Logging in which another party's text is escaped, cut, and kept on one line."""

import logging
import traceback
from collections.abc import Mapping
from logging import Logger, LogRecord
from typing import Any

from fedveil.errors import cleaned

LONGEST = 1000  # characters of one value, or of one line of a traceback
MOST_LINES = 80  # last lines of a traceback that are kept
CONTINUED = "\n    | "


def logger(name: str) -> Logger:
    """Return the logger of a name, with escaped messages; all of FedVeil's log calls use it.

    Examples
    --------
    >>> from fedveil.logs import logger
    >>> logger("doc") is logger("doc")
    True
    """
    found: Logger = escaping(logging.getLogger(name))
    return found


def escaping(log: Any) -> Any:
    """Make another framework's logger escape its messages, too; return the logger."""
    inner = getattr(log, "logger", log)  # log may be an adapter
    if not any(isinstance(one, _Escaping) for one in inner.filters):
        inner.addFilter(_Escaping())
    return log


class _Escaping(logging.Filter):
    """Filter that escapes a record's message and traceback, and marks each further line."""

    def filter(self, record: LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_shown(value) for value in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        lines = [cleaned(line, len(line), keep="\t") for line in str(record.msg).split("\n")]
        record.msg = CONTINUED.join(lines)
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = traced(record.exc_info[1])
        return True


def _shown(value: object) -> object:
    """Return a number unchanged, so that it can be formatted, and anything else as an escaped text."""
    if isinstance(value, int | float):
        return value
    return cleaned(value, LONGEST)


def traced(error: BaseException) -> str:
    """Return the traceback of an exception with each line escaped and marked, as its text can be another party's."""
    text = "".join(traceback.format_exception(error))
    lines = [cleaned(line, LONGEST) for line in text.split("\n") if line]
    return CONTINUED.join(["", *lines[-MOST_LINES:]]).removeprefix("\n")
