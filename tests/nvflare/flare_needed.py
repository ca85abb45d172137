"""Importing this skips a test module where NVIDIA FLARE is missing."""

import pytest

pytest.importorskip("nvflare", reason="needs the `nvflare` extra")
