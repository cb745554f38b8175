"""kl_divergence, jensen_shannon, total_variation: between two tensors [..., V]; the gradient flows to the student.

What they share: *_kind is "logits" (the softmax is made inside), "logprobs" or "probs" (used as they are, normalised or not); the
gradient is with respect to what was given. reduction "sum" (default), "mean" (with `denominator`, or `denominator_from` "count", torch's
"batchmean", or "elements", torch's "mean"), "none" (a loss of each row). want: "row_loss" [...], the sum over the columns.
options: `mask` [...], `row_weight` [...], `temperature`, `temperature_squared`, `valid_vocab`.
"""

from .autograd import run_loss


def kl_divergence(student, teacher, *, client, student_kind, teacher_kind, reduction="sum", backward=None, d_loss=None, want=None,
                  **options):
    """Kullback-Leibler divergence: KL(teacher, student) as torch kl_div, or with direction="reverse" KL(student, teacher).

    Args:
      student, teacher: [..., V], float32, bfloat16 or float16. The gradient flows to the student and has its dtype.
      student_kind: "logits" or "logprobs". teacher_kind: these or "probs".
      reduction: "sum", "mean" or "none". torch's "batchmean" is "mean" with denominator_from="count", its "mean" is "mean" with
        denominator_from="elements".
      backward, d_loss: see help(lossd.functional).
      want: None returns the loss; ("row_loss",) or () returns (loss, reply).
      options: `direction`, `teacher_floor`, `temperature`, `temperature_squared`, `mask`, `row_weight`, `valid_vocab`, `denominator` of
        lossd.ops.kl_divergence. torch's log_target is teacher_kind="logprobs".
    The loss is float32, in nats. Raises LossdError, which names the field.
    """
    return _divergence("kl_divergence", student, teacher, client, backward, d_loss, want, student_kind=student_kind,
                       teacher_kind=teacher_kind, reduction=reduction, **options)


def jensen_shannon(student, teacher, *, client, beta, student_kind, teacher_kind, reduction="sum", backward=None, d_loss=None, want=None,
                   **options):
    """Generalised Jensen-Shannon divergence: beta KL(p, M) + (1 - beta) KL(q, M), M = beta p + (1 - beta) q, p the teacher.

    Agarwal et al. 2024, eq. 2.

    Args:
      student, teacher: [..., V], float32, bfloat16 or float16. The gradient flows to the student and has its dtype.
      beta: 0 ... 1, weight of the teacher, as in TRL and Liger; 0 is KL(p, q), 1 is KL(q, p).
      student_kind, teacher_kind: "logits" or "logprobs".
      reduction, backward, d_loss, want: as in kl_divergence.
      options: `temperature`, `temperature_squared`, `mask`, `row_weight`, `valid_vocab`, `denominator` of lossd.ops.jensen_shannon.
    The loss is float32, in nats. Raises LossdError, which names the field.
    """
    return _divergence("jensen_shannon", student, teacher, client, backward, d_loss, want, beta=beta, student_kind=student_kind,
                       teacher_kind=teacher_kind, reduction=reduction, **options)


def total_variation(student, teacher, *, client, student_kind, teacher_kind, reduction="sum", backward=None, d_loss=None, want=None,
                    **options):
    """Total variation distance: half the sum of |q - p| over the columns; where both are equal its gradient is 0.

    Args:
      student, teacher: [..., V], float32, bfloat16 or float16. The gradient flows to the student and has its dtype.
      student_kind, teacher_kind: "logits" or "probs".
      reduction, backward, d_loss, want: as in kl_divergence.
      options: `temperature`, `temperature_squared`, `mask`, `row_weight`, `valid_vocab`, `denominator` of lossd.ops.total_variation.
    The loss is float32. Raises LossdError, which names the field.
    """
    return _divergence("total_variation", student, teacher, client, backward, d_loss, want, student_kind=student_kind,
                       teacher_kind=teacher_kind, reduction=reduction, **options)


def _divergence(op_name, student, teacher, client, backward, d_loss, want, **options):
    return run_loss(client, op_name, {"student": student}, {**options, "teacher": teacher}, backward, d_loss, want)
