"""Key files: made once, for their owner alone, shown by their public half, destroyed at the end."""

import os
import stat

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.engines.site_keys import end_key, make_key, read_key
from fedveil.errors import FieldError


def fedveil(*arguments):
    return CliRunner().invoke(app, ["keys", *map(str, arguments)])


def test_a_key_is_made_shown_and_ended(tmp_path):
    file = tmp_path / "site" / "study.key"
    made = fedveil("new", file)
    assert made.exit_code == 0
    public = read_key(file).public.hex()
    assert public in made.output
    assert public in fedveil("show", file).output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().split("\n")[1]
    assert len(bytes.fromhex(secret)) == 64
    assert secret not in made.output + fedveil("show", file).output + repr(read_key(file))
    assert fedveil("end", file).exit_code == 0
    assert not file.exists()
    assert fedveil("show", file).exit_code == 2


def test_two_keys_differ_and_none_is_overwritten(tmp_path):
    one, other = make_key(tmp_path / "a"), make_key(tmp_path / "b")
    assert one.public != other.public
    with pytest.raises(FieldError):
        make_key(tmp_path / "a")
    assert read_key(tmp_path / "a").public == one.public


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o606])
def test_a_key_that_others_can_touch_is_refused(tmp_path, mode):
    make_key(tmp_path / "a")
    os.chmod(tmp_path / "a", mode)
    for use in (read_key, end_key):
        with pytest.raises(FieldError, match="chmod 600"):
            use(tmp_path / "a")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "fedveil site key 1\n",
        "fedveil site key 1\nzz\n",
        "fedveil site key 1\n00\n",
        "x" * 4096,
    ],
)
def test_a_damaged_key_is_refused_and_nothing_of_it_is_shown(tmp_path, content):
    file = tmp_path / "a"
    make_key(file)
    secret = file.read_text().split("\n")[1]
    for text in (
        content,
        f"fedveil site key 2\n{secret}\n",
        f"fedveil site key 1\n{secret[:-2]}\n",
    ):
        file.write_text(text)
        with pytest.raises(FieldError) as refused:
            read_key(file)
        assert refused.value.field == "key"
        assert secret[:16] not in str(refused.value)


def test_links_and_folders_are_no_key_files(tmp_path):
    make_key(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for bad in (tmp_path / "link", tmp_path, tmp_path / "none"):
        with pytest.raises(FieldError):
            read_key(bad)


def test_a_fingerprint_is_too_long_for_two_sets_of_keys_to_be_made_alike(tmp_path):
    """Of 64 bits, whoever chooses a key in each of two sets finds a pair alike in 2^32 tries."""
    shown = fedveil("new", tmp_path / "a").output.split("fingerprint: ")[1].split()[0]
    assert len(bytes.fromhex(shown)) >= 16
