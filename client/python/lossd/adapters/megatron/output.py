"""The output layer and what follows it, as GPTModel's output_processor: no logits are made."""

import torch

from ...errors import field_error
from .. import shards
from ..session import client_or_default
from .cross_entropy import tensor_parallel_group


class OutputProcessor:
    """GPTModel.forward(..., output_processor=OutputProcessor(), output_processor_context=...).

    Returns the loss of each token [b, s] float32 where the model has labels, else raises. A context, a dict, asks for something else:
      {"target": [b, s]}: ids to score in place of labels, which stay away from the model.
      {"want": "logprob"} or a sequence of names of shards.STATISTICS: those tensors [b, s], and no loss.
      {"temperature": ...} and other options of lossd.ops.linear_logprob, which win over those given here; tensors are [b, s].
    Hidden states are gathered and their gradient is scattered where the output layer is sequence-parallel. The weight's gradient is added to
    main_grad where it has one. MuP's factor on the logits becomes logit_scale. Thread-compatible.
    Raises LossdError (what the server refuses), NotImplementedError where the config asks for defer_embedding_wgrad_compute.
    """

    def __init__(self, client=None, **options):
        self._client = client
        self._options = options

    def __call__(self, *, hidden_states, output_layer, output_weight=None, labels=None, context=None, scale_logits=None, config=None,
                 **_):
        if getattr(config, "defer_embedding_wgrad_compute", False):
            raise NotImplementedError("lossd computes the weight gradient in the backward: switch defer_embedding_wgrad_compute off")
        context = dict(context or {})
        target = context.pop("target", labels)
        want = context.pop("want", None)
        if target is None:
            raise field_error("labels", "given, or target in output_processor_context", "absent")
        for hook in list(output_layer._forward_pre_hooks.values()):  # of overlap_param_gather: the weight has arrived
            hook(output_layer, (hidden_states,))
        weight = output_layer.weight if output_weight is None else output_weight
        options = {**self._options, **context}
        if scale_logits is not None:
            options.setdefault("logit_scale", float(scale_logits(torch.ones(()))))
        options = {name: value.transpose(0, 1).contiguous() if isinstance(value, torch.Tensor) and value.dim() == 2 else value
                   for name, value in options.items()}
        found = shards.linear_logprob(
            hidden_states, weight, target.transpose(0, 1).contiguous(), client=client_or_default(self._client),
            group=getattr(output_layer, "tp_group", None) or tensor_parallel_group(), bias=getattr(output_layer, "bias", None),
            sequence_parallel=getattr(output_layer, "sequence_parallel", False), want=want or "logprob", **options)
        if want is None:
            return -found.transpose(0, 1).contiguous()
        if isinstance(want, str):
            return found.transpose(0, 1).contiguous()
        return tuple(value.transpose(0, 1).contiguous() for value in found)
