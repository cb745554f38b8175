"""linear_unpaired_loss and unpaired_loss."""

from .autograd import run_loss


def linear_unpaired_loss(hidden, weight, target, *, client, type, beta, cu_seqlens, desirable, bias=None, backward=None, d_loss=None,
                         want=None, dummy_grad=False, **options):
    """Loss of a linear head on single sequences with a thumb up or down: KTO, BCO, APO-zero unpaired.

    Args:
      hidden, weight, bias, target: [..., H], [V, H], [V], [...]: tokens of all sequences, and the ids that are to be predicted there.
      type: "kto" (needs `kl_baseline`: a number or one element, in nats), "bco" (`bco_delta`) or "apo_zero_unpaired".
      beta: > 0, 1/nats: strength of the pull to the reference.
      cu_seqlens: [B + 1], int32 or int64: first row of each sequence, and the number of rows.
      desirable: [B] bool or uint8: thumb up.
      backward, d_loss: see help(lossd.functional).
      want: None returns the loss; a sequence of names among "sequence_loss", "sequence_logp", "reward" [B], "logprob", "lse", "entropy"
        [...] returns (loss, reply).
      options: exactly one reference: `ref_logprob` [...] or `ref_sequence_logprob` [B] in nats, `ref_hidden` and `ref_weight`, or
        `reference_free=True`; `mask`, `desirable_weight`, `undesirable_weight`, `length_average`, `sequence_weight`, `denominator`, ... of
        lossd.ops.linear_unpaired_loss, where the formulas and papers are said.
    The loss is a float32 scalar: sum over sequences / denominator (1 unless denominator or denominator_from="count" is given).
    Raises LossdError, which names the field.
    """
    return run_loss(client, "linear_unpaired_loss", {"hidden": hidden, "weight": weight, "bias": bias},
                    {**options, "target": target, "type": type, "beta": beta, "cu_seqlens": cu_seqlens, "desirable": desirable},
                    backward, d_loss, want, dummy_grad)


def unpaired_loss(logprob, *, client, type, beta, cu_seqlens, desirable, backward=None, d_loss=None, want=None, **options):
    """The losses of linear_unpaired_loss from log-probabilities; the gradient flows to them.

    Args:
      logprob: [...] float32, nats: log-probability of each token under the current policy.
      type, beta, cu_seqlens, desirable, backward, d_loss: as in linear_unpaired_loss.
      want: None returns the loss; a sequence of names among "sequence_loss", "sequence_logp", "reward" returns (loss, reply).
      options: those of lossd.ops.unpaired_loss.
    The loss is a float32 scalar. Raises LossdError, which names the field.
    """
    return run_loss(client, "unpaired_loss", {"logprob": logprob},
                    {**options, "type": type, "beta": beta, "cu_seqlens": cu_seqlens, "desirable": desirable}, backward, d_loss, want)
