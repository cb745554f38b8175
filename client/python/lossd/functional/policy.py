"""linear_policy_loss and policy_loss."""

from .autograd import run_loss


def linear_policy_loss(hidden, weight, target, *, client, kind, bias=None, backward=None, d_loss=None, want=None, dummy_grad=False,
                       **options):
    """Policy-gradient loss of a linear head: PPO and GRPO, REINFORCE, GSPO and more; KL to a reference, entropy, importance weights.

    Args:
      hidden, weight, bias, target: [..., H], [V, H], [V], [...]: tokens, and the ids that were sampled there.
      kind: "ppo" (also GRPO, DAPO, BNPO, Dr.GRPO, which differ in the aggregation), "reinforce" or "gpg" (the same formula), "gspo",
        "luspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "dro", "vespo", "clip_cov", "kl_cov".
      backward, d_loss: see help(lossd.functional).
      want: None returns the loss; a sequence of names among "row_loss", "ratio", "importance_weight", "kl", "logprob", "lse", "entropy"
        (may be empty) returns (loss, reply): outputs, `reply.metrics`, `reply.sum`, `reply.count`.
      options: `advantage` [...] or `sequence_advantage` [B], `old_logprob` [...] in nats or `force_on_policy`, `ref_logprob`, `cu_seqlens`,
        `clip_low`, `clip_high`, `kl_estimator`, `kl_coef`, `sequence_weighting`, `denominator`, ... of lossd.ops.linear_policy_loss, where
        the formula and the paper of each kind are said.
    The loss is a float32 scalar: sum over tokens / denominator, as the options say; nothing is averaged by itself.
    Raises LossdError, which names the field.
    """
    return run_loss(client, "linear_policy_loss", {"hidden": hidden, "weight": weight, "bias": bias},
                    {**options, "target": target, "kind": kind}, backward, d_loss, want, dummy_grad)


def policy_loss(logprob=None, weight=None, target=None, *, client, kind, entropy=None, kl_logprob=None, backward=None, d_loss=None,
                want=None, hidden=None, **options):
    """The losses of linear_policy_loss from log-probabilities. Gradients flow to logprob, entropy and kl_logprob.

    policy_loss(hidden, weight, target, ...) is linear_policy_loss under its former name.

    Args:
      logprob: [...] float32, nats: log-probability of each token under the current policy, as lossd.linear_logprob makes it.
      entropy: [...] float32, nats: of each token's distribution; with entropy_kind "true" or entropy_threshold, and only there.
      kl_logprob: [...] float32, nats: what the KL term uses in place of logprob.
      kind, backward, d_loss: as in linear_policy_loss.
      want: None returns the loss; a sequence of names among "row_loss", "ratio", "importance_weight", "kl" returns (loss, reply).
      options: those of lossd.ops.policy_loss.
    The loss is a float32 scalar. Raises LossdError, which names the field.
    """
    if hidden is not None or weight is not None or target is not None:
        if hidden is None:
            hidden, logprob = logprob, None
        given = {"logprob": logprob, "entropy": entropy, "kl_logprob": kl_logprob}
        options.update((name, value) for name, value in given.items() if value is not None)  # refused there
        return linear_policy_loss(hidden, weight, target, client=client, kind=kind, backward=backward, d_loss=d_loss, want=want,
                                  **options)
    if entropy is not None and not str(options.get("entropy_kind")).upper().endswith("TRUE") and hasattr(entropy, "detach"):
        entropy = entropy.detach()  # a threshold has no gradient
    return run_loss(client, "policy_loss", {"logprob": logprob, "entropy": entropy, "kl_logprob": kl_logprob},
                    {**options, "kind": kind}, backward, d_loss, want)
