"""megatron-core, imported when it is needed."""

from ..require import require, seam

PACKAGE = "megatron-core"
TESTED = "megatron-core 0.16.1 and Megatron-LM of August 2026 (0.20)"


def core(module, purpose):
    """megatron.core.<module>."""
    return require("megatron.core." + module, PACKAGE, TESTED, "lossd.adapters.megatron." + purpose)


def core_seam(owner, name):
    return seam(owner, name, PACKAGE, TESTED)
