"""torch.autocast: a linear head computes in the type that torch.nn.functional.linear would."""

import torch

_BY_DEVICE = hasattr(torch, "get_autocast_dtype")  # torch >= 2.4


def autocast(inputs, main_grad=True):
    """The inputs of a linear operation by name, in autocast's type where it is on for their device; None stays None.

    A weight with a main_grad stays as it is: its gradient goes there, and the operation takes any two types. main_grad False: is not looked for.
    """
    device = next(iter(inputs.values())).device.type
    dtype = _dtype(device)
    if dtype is None:
        return inputs
    stays = {name for name, value in inputs.items()
             if value is None or value.dtype == dtype or main_grad and getattr(value, "main_grad", None) is not None}
    return {name: value if name in stays else value.to(dtype) for name, value in inputs.items()}


def _dtype(device):
    if _BY_DEVICE:
        return torch.get_autocast_dtype(device) if device in ("cpu", "cuda") and torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
