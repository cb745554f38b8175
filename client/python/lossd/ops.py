"""The operations as functions, made from the descriptor: help(lossd.ops.linear_logprob) documents every field.

    reply = lossd.ops.linear_logprob(client, hidden=h, weight=w, target=t, want=("logprob", "entropy"))
    reply["logprob"], reply.count

Tensors are numpy arrays or torch tensors (numbers and lists become the field's own type); enums are names as in "NONE"; an option
that is None is absent. Beside its fields every function takes:

  want: names of outputs that are made for this call.
  out: outputs that go to arrays of the caller, by name: {"grad_weight": main_grad}.
  batch_invariant: a row's log-probability has the same bits whatever else is in the call.
  gradient_filter, workspace_limit, donate: the fields of lossd.v1.RunRequest.
  timeout: seconds; None: that of the connection.

Nothing here is differentiable by autograd; lossd.linear_logprob and its like are. Raises LossdError.
"""

import inspect

from .calls import ENVELOPE, run_op
from .errors import did_you_mean, unknown_keyword
from .library import load


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    op = load().schema.ops.get(name)
    if op is None:
        known = load().schema.ops
        raise AttributeError(f"no operation {name}{did_you_mean(name, known)}: there are {', '.join(known)}")
    function = _make(op)
    globals()[name] = function
    return function


def __dir__():
    return sorted(load().schema.ops)


def _make(op):
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("client", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for rule in op.inputs:
        default = inspect.Parameter.empty if rule.required else None
        parameters.append(inspect.Parameter(rule.name, keyword, default=default))
    parameters.append(inspect.Parameter("want", keyword, default=()))
    parameters.append(inspect.Parameter("out", keyword, default=None))
    for name, default in zip(ENVELOPE, (False, None, 0, (), None)):
        parameters.append(inspect.Parameter(name, keyword, default=default))
    signature = inspect.Signature(parameters)
    special = ("client", "want", "out") + ENVELOPE

    def function(*args, **kwargs):
        for name in kwargs:
            if name not in signature.parameters:
                raise unknown_keyword(op.name, name, signature.parameters)
        given = signature.bind(*args, **kwargs).arguments
        envelope = {name: given[name] for name in special[1:] if name in given}
        values = {name: value for name, value in given.items() if name not in special}
        return run_op(given["client"], op, values, **envelope)

    function.__name__ = function.__qualname__ = op.name
    function.__module__ = __name__
    function.__signature__ = signature
    function.__doc__ = op.document()
    return function
