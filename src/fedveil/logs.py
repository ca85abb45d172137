"""Logs: words of another party get there escaped, in one line and cut, whoever hands them over."""

import logging
import traceback
from collections.abc import Mapping
from logging import Logger, LogRecord
from typing import Any

from fedveil.errors import cleaned

LONGEST = 1000  # characters of one value, or of one line of a traceback
MOST_LINES = 80  # of a traceback, at its end
CONTINUED = "\n    | "


def logger(name: str) -> Logger:
    """The logger of that name; each of FedVeil's log calls goes through this function.

    Examples
    --------
    >>> from fedveil.logs import logger
    >>> logger("doc") is logger("doc")
    True
    """
    found: Logger = escaping(logging.getLogger(name))
    return found


def escaping(log: Any) -> Any:
    """A logger that another framework made, as `logger` makes them."""
    inner = getattr(log, "logger", log)  # of an adapter
    if not any(isinstance(one, _Escaping) for one in inner.filters):
        inner.addFilter(_Escaping())
    return log


class _Escaping(logging.Filter):
    """Escapes what a record was given, and its traceback; each further line of a text is marked as one."""

    def filter(self, record: LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_shown(value) for value in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        lines = str(record.msg).split("\n")
        record.msg = CONTINUED.join(cleaned(line, len(line), keep="\t") for line in lines)
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = traced(record.exc_info[1])
        return True


def _shown(value: object) -> object:
    """A number, for its format; everything else as an escaped text."""
    return value if isinstance(value, int | float) else cleaned(value, LONGEST)


def traced(error: BaseException) -> str:
    """The traceback of an exception, each line marked and escaped: its text can be another party's."""
    lines = [line for line in "".join(traceback.format_exception(error)).split("\n") if line]
    return CONTINUED.join(["", *(cleaned(line, LONGEST) for line in lines[-MOST_LINES:])]).removeprefix("\n")
