"""megatron/rl: log-probabilities without logits, and the GRPO loss in one call."""

import inspect
import warnings

import torch

from ...calls import run_op
from ...library import load
from ..require import require, seam
from ..session import client_or_default
from ..switch import Switch
from .output import OutputProcessor
from .package import TESTED


class _RowLoss(torch.autograd.Function):
    """Each token's loss, with the gradient of any weighting of the tokens: a token's loss depends on its own log-probability only."""

    @staticmethod
    def forward(ctx, client, options, logprob):
        want = ["row_loss", "ratio"] + ["kl"] * ("ref_logprob" in options) + ["d_logprob"] * ctx.needs_input_grad[2]
        reply = run_op(client, load().schema.ops["policy_loss"], {"logprob": logprob.float(), "kind": "ppo", **options}, want)
        if ctx.needs_input_grad[2]:
            ctx.save_for_backward(reply["d_logprob"])
        ctx.dtype = logprob.dtype
        kl = reply["kl"] if "kl" in want else torch.zeros_like(reply["ratio"])
        ctx.mark_non_differentiable(reply["ratio"], kl)
        return reply["row_loss"], reply["ratio"], kl

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream, *_):
        d_logprob, = ctx.saved_tensors
        return None, None, (upstream * d_logprob).to(ctx.dtype)


def grpo_loss(current_logprobs, old_logprobs, ref_logprobs, advantages, clamp_eps_lower, clamp_eps_upper, kl_beta, entropy_weight,
              inference_logprobs=None, is_truncation_coef=None, seq_starts=None, seq_lengths=None, *, client=None):
    """megatron.rl.rl_utils.calculate_grpo_loss with its arguments and results: loss, KL term, ratio, entropy term of each token [b, s] or
    [1, bin], and whether the ratio is above, below its bounds. The gradient flows through the loss. No host waits for an advantage."""
    current_logprobs, old_logprobs, ref_logprobs = torch.broadcast_tensors(current_logprobs, old_logprobs, ref_logprobs)
    options = {"clip_low": clamp_eps_lower, "clip_high": clamp_eps_upper, "old_logprob": old_logprobs.detach().float(),
               "advantage": _token_advantages(advantages, current_logprobs, seq_starts, seq_lengths),
               "ref_logprob": ref_logprobs.detach().float(), "kl_estimator": "k3", "kl_coef": kl_beta,
               "entropy_kind": "sampled_plogp", "entropy_coef": entropy_weight}
    if inference_logprobs is not None:
        options.update(sampler_logprob=inference_logprobs.detach().float(), is_level="token")
        options.update({"is_mode": "raw"} if is_truncation_coef is None else {"is_mode": "truncate", "is_max": is_truncation_coef})
    loss, ratio, kl = _RowLoss.apply(client_or_default(client), options, current_logprobs)
    logprob = current_logprobs.detach().float()
    return loss, kl, ratio, -logprob.exp() * logprob, ratio > 1 + clamp_eps_upper, ratio < 1 - clamp_eps_lower


def _token_advantages(advantages, like, seq_starts, seq_lengths):
    """[b, s] float32 on the device, from one advantage for each row or for each sequence of a packed bin."""
    if seq_starts is None or seq_lengths is None:
        return advantages.to(like.device).float().reshape(-1, 1).expand(like.shape).contiguous()
    bin_size = like.shape[1]
    owner = torch.full((bin_size,), -1, dtype=torch.long)
    for index, (start, length) in enumerate(zip(seq_starts, seq_lengths)):  # on the host, where the bounds are
        owner[int(start):min(int(start) + int(length) - 1, bin_size)] = index  # a sequence has one log-probability less than tokens
    owner = owner.to(like.device, non_blocking=True)
    padded = torch.cat([advantages.to(like.device).float().reshape(-1), torch.zeros(1, device=like.device)])
    return padded[owner][None]


def use_rl(client=None, *, modules=(), dtype=torch.float32, batch_invariant=True):
    """Puts lossd behind megatron.rl.rl_utils: get_logprobs (through the model's output processor) and calculate_grpo_loss.

    Args:
      modules: others that imported the two names already, as train_rl.py does.
      dtype: of the log-probabilities; compute_logprobs_batch is told so. torch.bfloat16 is Megatron-LM's own in bf16 training, which rounds
        the exponent of the ratio.
      batch_invariant: old and new log-probabilities of a token have the same bits, so that the first ratio is exactly 1.
    Context parallelism, and models without the hook, stay with Megatron-LM's get_logprobs (with a warning, once). Returns a Switch.
    """
    purpose, checkout = "lossd.adapters.megatron.use_rl", "Megatron-LM (a checkout on PYTHONPATH)"
    rl_utils = require("megatron.rl.rl_utils", checkout, TESTED, purpose)
    for name in ("get_logprobs", "calculate_grpo_loss", "selective_log_softmax"):
        seam(rl_utils, name, checkout, TESTED)
    client = client_or_default(client)
    get_logprobs = _GetLogprobs(rl_utils, OutputProcessor(client, batch_invariant=batch_invariant), dtype)

    def calculate_grpo_loss(*arguments, **named):
        return grpo_loss(*arguments, client=client, **named)

    switch = Switch()
    for module in (rl_utils, *modules):
        switch.replace(module, "get_logprobs", get_logprobs)
        switch.replace(module, "calculate_grpo_loss", calculate_grpo_loss)
    native_batch = getattr(rl_utils, "compute_logprobs_batch", None)
    if native_batch is not None:
        def compute_logprobs_batch(model, *arguments, **named):  # it checks the type of what it gathers
            if "dtype" in named and get_logprobs.hooked(model) is not None:
                named["dtype"] = dtype
            return native_batch(model, *arguments, **named)

        switch.replace(rl_utils, "compute_logprobs_batch", compute_logprobs_batch)
    return switch


class _GetLogprobs:
    """get_logprobs(model, tokens, position_ids, ...): [b, s - 1] on the last pipeline stage, hidden states on the others.

    Megatron-LM's function prepares the call and scores the logits that come back. In here the model gives log-probabilities [b, s, 1] in their
    place, and scoring takes the last dimension away.
    """

    def __init__(self, rl_utils, processor, dtype):
        self._rl_utils, self._native = rl_utils, rl_utils.get_logprobs
        self._processor, self._dtype = processor, dtype
        self._warned = False

    def hooked(self, model):
        """The module inside the wrappers whose forward takes an output processor; None where Megatron-LM's way is taken."""
        groups = self._rl_utils.get_attr_wrapped_model(model, "pg_collection")
        context = getattr(groups, "cp", None)
        if context is not None and torch.distributed.get_world_size(context) > 1:
            return self._fall_through("context parallelism")
        while not hasattr(model, "output_layer") and hasattr(model, "module"):
            model = model.module
        if "output_processor" not in inspect.signature(model.forward).parameters:
            return self._fall_through(f"{type(model).__name__} has no output_processor")
        return model

    def __call__(self, model, tokens, position_ids, *arguments, **named):
        inner = self.hooked(model)
        if inner is None:
            return self._native(model, tokens, position_ids, *arguments, **named)
        forward = inner.forward
        context = {"target": torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1), "want": "logprob"}  # the last one is not scored

        def processor(**given):
            return self._processor(**given).to(self._dtype)[..., None]

        def forward_with_processor(*inputs, **options):
            return forward(*inputs, output_processor=processor, output_processor_context=context, **options)

        with Switch().replace(inner, "forward", forward_with_processor).replace(
                self._rl_utils, "selective_log_softmax", lambda scored, index: scored.squeeze(-1)):
            return self._native(model, tokens, position_ids, *arguments, **named)

    def _fall_through(self, why):
        if not self._warned:
            warnings.warn(f"lossd: get_logprobs stays with Megatron-LM: {why}")
        self._warned = True
