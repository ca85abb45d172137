"""Importing this skips a test module where NVIDIA FLARE is missing."""

import pytest

pytest.importorskip("nvflare.apis", reason="needs the `nvflare` extra")
