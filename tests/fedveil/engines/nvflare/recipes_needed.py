"""Importing this skips a test module where FLARE's recipes lack what `protect` uses: it was written for 2.9."""

import flare_needed  # noqa: F401
import pytest

spec = pytest.importorskip("nvflare.recipe.spec", reason="this FLARE has no recipes")
if not hasattr(spec.Recipe, "_ensure_client_apps_prepared"):
    pytest.skip("protect needs recipes of FLARE 2.9", allow_module_level=True)
