"""Cross entropy of vocabulary-parallel logits with Megatron-LM's signatures."""

from .. import shards
from ..session import client_or_default
from ..switch import Switch
from .package import core, core_seam

NAME = "lossd"


def vocab_parallel_cross_entropy(vocab_parallel_logits, target, *more, label_smoothing=0.0, tp_group=None, client=None):
    """Loss of each token [s, b] float32, in the place of Megatron-LM's functions; the logits are not written.

    Args:
      vocab_parallel_logits, target: [s, b, V / tp], [s, b] of global ids.
      more: as Megatron-LM's functions are called: (label_smoothing, tp_group) of the native one, (tp_group,) of the fused ones.
      tp_group: None is the model's tensor-parallel group, if parallel_state has one.
      label_smoothing: as Megatron-LM's, but over the whole vocabulary; Megatron-LM's mean is over each rank's part.
    """
    for value in more:
        if isinstance(value, (int, float)):
            label_smoothing = value
        elif value is not None:
            tp_group = value
    return shards.cross_entropy(vocab_parallel_logits, target, client=client_or_default(client), label_smoothing=label_smoothing,
                                group=tensor_parallel_group() if tp_group is None else tp_group)


def cross_entropy_target(client=None):
    """target(logits, labels, tp_group): what a spec provider hands out, and what a config's cross entropy is."""
    client = client_or_default(client)

    def target(logits, labels, tp_group=None):
        return vocab_parallel_cross_entropy(logits, labels, tp_group=tp_group, client=client)

    return target


def tensor_parallel_group():
    parallel_state = core("parallel_state", "vocab_parallel_cross_entropy")
    if not parallel_state.model_parallel_is_initialized():
        return None
    return parallel_state.get_tensor_model_parallel_group()


def use_cross_entropy(client=None):
    """Makes "lossd" a value of cross_entropy_fusion_impl; configs with another value, or without cross_entropy_loss_fusion, are not touched.

    Set it on the config that the model has (config.cross_entropy_fusion_impl = "lossd"). Returns a Switch.
    """
    language_module = core("models.common.language_module.language_module", "use_cross_entropy")
    model = core_seam(language_module, "LanguageModule")
    native = core_seam(model, "compute_language_model_loss")
    client = client_or_default(client)

    def compute_language_model_loss(self, labels, logits):
        if not (self.config.cross_entropy_loss_fusion and self.config.cross_entropy_fusion_impl == NAME):
            return native(self, labels, logits)
        pg_collection = getattr(self, "pg_collection", None)
        loss = vocab_parallel_cross_entropy(logits, labels.transpose(0, 1).contiguous(), client=client,
                                            tp_group=getattr(pg_collection, "tp", None))
        return loss.transpose(0, 1).contiguous()

    switch = Switch().replace(model, "compute_language_model_loss", compute_language_model_loss)
    backends = core("models.backends", "use_cross_entropy")
    select = getattr(backends, "select_cross_entropy", None)  # later versions resolve the name there
    if select is not None:
        def select_cross_entropy(cross_entropy_loss_fusion=False, cross_entropy_fusion_impl="native", *more, **named):
            if cross_entropy_loss_fusion and cross_entropy_fusion_impl == NAME:
                return cross_entropy_target(client)
            return select(cross_entropy_loss_fusion, cross_entropy_fusion_impl, *more, **named)

        switch.replace(backends, "select_cross_entropy", select_cross_entropy)
    return switch
