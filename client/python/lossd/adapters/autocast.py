"""torch's autocast, which operations of other libraries do not see."""

import torch


def cast(*tensors):
    """The tensors in autocast's type where it is on for their device, as torch.nn.functional.linear would take them; None stays None."""
    dtype = _dtype(tensors[0].device.type)
    return tensors if dtype is None else tuple(None if t is None else t.to(dtype) for t in tensors)


def _dtype(device):
    if device not in ("cpu", "cuda"):
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
