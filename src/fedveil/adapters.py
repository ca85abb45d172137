"""Names under which an adapter library (PEFT) saves a model's trained parameters."""

from importlib import import_module

from torch import nn


def saved_names(module: nn.Module) -> dict[str, str]:
    """Return the names of a PEFT model's trained parameters in its saved adapter, by their names in the model.

    ``get_peft_model_state_dict`` leaves the adapter's own name out: ``lora_A.weight`` for ``lora_A.default.weight``.

    Parameters
    ----------
    module : torch.nn.Module
        Model; if PEFT did not make it, the result is empty.
    """
    if not hasattr(module, "peft_config"):
        return {}
    try:
        peft = import_module("peft")
    except ImportError:  # something else that has an attribute of this name
        return {}
    saved = peft.get_peft_model_state_dict(module)
    names = {tensor.data_ptr(): name for name, tensor in saved.items()}
    found = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.data_ptr() in names:
            found[name] = names[parameter.data_ptr()]
    return found
