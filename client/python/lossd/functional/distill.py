"""linear_distill_loss."""

from .autograd import run_loss


def linear_distill_loss(hidden, weight, *, client, divergence, target=None, bias=None, reduction="sum", backward=None, d_loss=None,
                        want=None, dummy_grad=False, **options):
    """Distillation of a linear head from a teacher: KL either way, generalised JSD, total variation, cosine; a hard part where asked for.

    Args:
      hidden, weight, bias: [..., H], [V, H], [V]: the student. Gradients flow to it alone.
      divergence: "forward_kl", "reverse_kl", "jsd" (with `beta`, the weight of the teacher), "mixed" (with `mix_weight`), "tvd", "cosine".
      target: [...]: ids of the cross entropy (`hard_weight` > 0); rows with ignore_index do not count.
      reduction: "sum" (default), "mean" (with `denominator` or `denominator_from="count"`), "none" (a loss of each row).
      backward, d_loss: see help(lossd.functional).
      want: None returns the loss; a sequence of names among "row_loss", "logprob", "lse", "entropy", and with a top-k teacher
        "student_mass", "teacher_mass", "overlap" returns (loss, reply); reply.metrics has soft and hard.
      options: exactly one teacher: `teacher_hidden` [..., H'] and `teacher_weight` [V', H'] (`teacher_bias` [V']), `teacher_logits`
        [..., V'], or `teacher_topk_ids` [..., K] and `teacher_topk_logprob` [..., K] in nats with `tail` ("drop", "renormalise", "ghost",
        "zero_outside"). `temperature` (of both), `temperature_squared`, `soft_weight`, `hard_weight`, `mask`, `row_weight`, ... of
        lossd.ops.linear_distill_loss, where the formulas and papers are said.
    The loss is float32, in nats. Raises LossdError, which names the field.
    """
    return run_loss(client, "linear_distill_loss", {"hidden": hidden, "weight": weight, "bias": bias},
                    {**options, "divergence": divergence, "target": target, "reduction": reduction}, backward, d_loss, want,
                    dummy_grad)
