"""A file is replaced at once, and what is no file is not replaced."""

import os

import pytest

from fedveil.errors import FieldError
from fedveil.files.disk import write_atomic


def test_a_file_is_replaced_and_a_link_to_one_too(tmp_path):
    file, link = tmp_path / "a", tmp_path / "b"
    write_atomic(file, b"old")
    write_atomic(file, b"new")
    link.symlink_to(file)
    write_atomic(link, b"other")
    assert (file.read_bytes(), link.read_bytes()) == (b"new", b"other")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_stays(tmp_path, kind):
    path = tmp_path / "a"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    before = path.lstat().st_mode
    with pytest.raises(FieldError):
        write_atomic(path, b"new")
    assert path.lstat().st_mode == before
    assert os.listdir(tmp_path) == ["a"]
