"""linear_preference_loss and preference_loss."""

from .autograd import run_loss


def linear_preference_loss(hidden, weight, target, *, client, terms, cu_seqlens, pairing, bias=None, backward=None, d_loss=None, want=None,
                           dummy_grad=False, **options):
    """Preference loss of a linear head on pairs of sequences: DPO and its relatives, CPO, SimPO, ORPO, APO, AOT, weighted lists of them.

    Args:
      hidden, weight, bias, target: [..., H], [V, H], [V], [...]: tokens of all sequences, and the ids that are to be predicted there.
      terms: a list of dicts, as in [{"type": "sigmoid", "beta": 0.1}]: type ("sigmoid", "robust", "hinge", "ipo", "exo_pair", "nca_pair",
        "bco_pair", "sppo_hard", "discopop", "apo_zero", "apo_down", "orpo", "aot", "aot_unpaired"), beta > 0; weight, length_average, and
        label_smoothing, margin, tau, bco_delta where the type has them. The loss of a pair is their weighted sum.
      cu_seqlens: [2P + 1], int32 or int64: first row of each sequence, and the number of rows.
      pairing: "halves" (chosen sequences, then rejected ones) or "interleaved" (chosen, rejected, chosen, ...).
      backward, d_loss: see help(lossd.functional).
      want: None returns the loss; a sequence of names among "pair_loss", "chosen_logp", "rejected_logp", "chosen_reward", "rejected_reward"
        [P], "logprob", "lse", "entropy" [...] returns (loss, reply); reply.metrics has accuracy and margin.
      options: exactly one reference: `ref_logprob` [...] or `ref_sequence_logprob` [2P] in nats, `ref_hidden` and `ref_weight`, or
        `reference_free=True`; `mask`, `score`, `ld_alpha`, `wpo`, `pair_weight`, `nll_coef`, `denominator`, ... of
        lossd.ops.linear_preference_loss, where the formula and the paper of each are said.
    The loss is a float32 scalar: sum over pairs / denominator (1 unless denominator or denominator_from="count" is given).
    Raises LossdError, which names the field, as in "terms[1].beta".
    """
    return run_loss(client, "linear_preference_loss", {"hidden": hidden, "weight": weight, "bias": bias},
                    {**options, "target": target, "terms": terms, "cu_seqlens": cu_seqlens, "pairing": pairing}, backward, d_loss,
                    want, dummy_grad)


def preference_loss(logprob, *, client, terms, cu_seqlens, pairing, backward=None, d_loss=None, want=None, **options):
    """The losses of linear_preference_loss from log-probabilities; the gradient flows to them.

    Args:
      logprob: [...] float32, nats: log-probability of each token under the current policy.
      terms, cu_seqlens, pairing, backward, d_loss: as in linear_preference_loss.
      want: None returns the loss; a sequence of names among "pair_loss", "chosen_logp", "rejected_logp", "chosen_reward", "rejected_reward"
        returns (loss, reply).
      options: those of lossd.ops.preference_loss; with `wpo` also `log_sum_p2` [...], an output of lossd.linear_logprob.
    The loss is a float32 scalar. Raises LossdError, which names the field.
    """
    return run_loss(client, "preference_loss", {"logprob": logprob},
                    {**options, "terms": terms, "cu_seqlens": cu_seqlens, "pairing": pairing}, backward, d_loss, want)
