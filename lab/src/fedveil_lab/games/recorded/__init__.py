"""Attacks on a finished run, by the files that its deployed server stored; nothing is trained again."""

from fedveil_lab.games.recorded.game import FAMILIES as FAMILIES
from fedveil_lab.games.recorded.game import RecordedGame as RecordedGame
from fedveil_lab.games.recorded.stored import Stored as Stored
from fedveil_lab.games.recorded.stored import stored_run as stored_run
