"""linear_cross_entropy and cross_entropy."""

from .autograd import run_loss


def linear_cross_entropy(hidden, weight, target, *, client, bias=None, reduction="sum", backward=None,
                         d_loss=None, want=None, dummy_grad=False, **options):
    """Cross entropy of a linear head: torch's formulas for class weights, smoothing and ignore_index, and more.

    Args:
      hidden, weight, bias, target: [..., H], [V, H], [V], [...].
      reduction: "sum" (default), "mean" (with `denominator`, or `denominator_from` "count" or "weight_sum"), "none" (a loss of each row).
      backward: "recompute", "forward" or "fused", see help(lossd.functional).
      d_loss: upstream gradient for "fused": a number, a tensor of one element, or of [...] with reduction "none".
      want: None returns the loss; a sequence of names among "row_loss", "logprob", "lse", "entropy", "argmax" (may be empty) returns
        (loss, reply) with these outputs in the calls.Reply, without gradients.
      options: `label_smoothing`, `class_weight`, `row_weight`, `z_loss`, `ignore_index`, ... of lossd.ops.linear_cross_entropy.
    The loss is float32, in nats. Without a row that counts it is 0, not NaN.
    Raises LossdError, which names the field.
    """
    return run_loss(client, "linear_cross_entropy", {"hidden": hidden, "weight": weight, "bias": bias},
                    {**options, "target": target, "reduction": reduction}, backward, d_loss, want, dummy_grad)


def cross_entropy(logits, target, *, client, reduction="sum", backward=None, d_loss=None, want=None, donate=False, **options):
    """Cross entropy of logits that the caller has: torch.nn.functional.cross_entropy, and more. Logits are read once for value and gradient.

    Args:
      logits, target: [..., V] in float32, bfloat16 or float16, and [...]. The gradient has the logits' dtype.
      reduction: "sum" (default), "mean" (with `denominator`, or `denominator_from` "count" or "weight_sum"), "none" (a loss of each row).
        torch's "mean" is "mean" with denominator_from="count", or "weight_sum" where there is a class_weight.
      backward, d_loss: see help(lossd.functional).
      want: None returns the loss; a sequence of names among "row_loss", "logprob", "lse", "entropy", "argmax" (may be empty) returns
        (loss, reply).
      donate: the gradient takes the memory of logits, which are gone as soon as it is computed: in this call, or in the backward with
        "recompute". Saves [..., V] of memory. Whatever else saved the logits for its backward fails there.
      options: `label_smoothing`, `class_weight`, `row_weight`, `z_loss`, `ignore_index`, `softcap`, `temperature`, `mask`, ... of
        lossd.ops.cross_entropy.
    The loss is float32, in nats. Without a row that counts it is 0, not NaN.
    Raises LossdError, which names the field.
    """
    return run_loss(client, "cross_entropy", {"logits": logits}, {**options, "target": target, "reduction": reduction}, backward,
                    d_loss, want, donated=("logits",) if donate else ())
