"""An older FLARE: a recipe is refused by the seam that is missing, and not by FLARE's number."""

from pathlib import Path

import flare_needed  # noqa: F401
import pytest

from fedveil.engines.nvflare.recipe_parts import SEAMS
from fedveil.errors import FieldError
from fedveil.nvflare import protect
from hello_kit import SimpleNetwork

pytestmark = pytest.mark.nvflare


class Lacking:
    """A recipe of another FLARE."""


def recipe():
    """This FLARE's own recipe, if that lacks a seam."""
    spec = pytest.importorskip("nvflare.recipe.spec", reason="this FLARE has no recipes")
    if hasattr(spec.Recipe, "_ensure_client_apps_prepared"):
        return Lacking()
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

    script = str(Path(__file__).with_name("hello_client.py"))
    given = {"name": "study", "min_clients": 3, "num_rounds": 2, "model": SimpleNetwork()}
    return FedAvgRecipe(**given, train_script=script)


def test_a_recipe_that_lacks_a_seam_is_refused_by_its_name():
    with pytest.raises(FieldError) as refused:
        protect(recipe(), "global", parameters={"noise_multiplier": 1.0})
    assert refused.value.field == "recipe"
    assert any(seam in str(refused.value) for seam in SEAMS)
