"""A summary says on what kind of machine its last bits were made, and names no machine."""

import platform

import torch

from fedveil.evidence import machine


def test_the_kind_of_a_machine_is_told_without_its_name():
    told = machine()
    assert told["instruction set"] == torch.backends.cpu.get_cpu_capability()
    assert told["threads"] == torch.get_num_threads()
    assert str(told["processor"]).startswith(platform.machine())
    assert platform.node() not in str(told)
