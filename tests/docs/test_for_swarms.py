"""The page for swarms: its attack of a site's own plays on the site's releases alone."""

import re
from pathlib import Path

import pytest

from fedveil_lab.config import load
from fedveil_lab.games import game_of, play

PAGE = Path(__file__).parents[2] / "docs" / "for-swarms.md"


@pytest.mark.slow
def test_a_site_attacks_what_it_is_about_to_send(tmp_path):
    [text] = re.findall(r"```toml\n(# mine\.toml.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "mine.toml"
    file.write_text(text)
    found = play(game_of(load(file), "membership", replicates=1))
    played = {(one.setting, one.attack): one.point for one in found.verdicts}
    for setting in ("vanilla", "record"):
        for attack in ("loss", "loss-trajectory"):
            assert 0.4 < played[setting, attack] < 0.8
