"""Errors that end a command: which are said in one line, and which are not hidden."""

import click
import pytest

from fedveil.cli.shared import REFUSED, refusals

ALLOCATORS = [
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 2304000000 bytes. Error code 12 (Cannot allocate memory)",
    "CUDA out of memory. Tried to allocate 2.00 GiB.",
]


@pytest.mark.parametrize(
    "error", [*map(RuntimeError, ALLOCATORS), MemoryError("Unable to allocate 8.0 GiB")]
)
def test_a_lack_of_memory_is_said_with_the_keys_that_help(error, capsys):
    with pytest.raises(click.exceptions.Exit) as ended, refusals():
        raise error
    assert ended.value.exit_code == REFUSED
    said = capsys.readouterr().err
    assert "allocate" in said
    assert "local.batch_size" in said
    assert "model.lora" in said


def test_other_errors_are_not_hidden():
    with pytest.raises(RuntimeError, match="shapes"), refusals():
        raise RuntimeError("shapes differ")
