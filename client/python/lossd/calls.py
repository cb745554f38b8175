"""One operation as a request, and its reply as arrays."""

import collections
import numbers
import threading

from . import tensors
from .errors import LossdError, did_you_mean, field_error, type_error
from .placement import place
from .schema import parse_dim

# Codes after which the server may still be at work in the call's tensors.
_MAY_STILL_RUN = {"DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE", "UNKNOWN", "INTERNAL"}
ENVELOPE = ("batch_invariant", "gradient_filter", "workspace_limit", "donate", "timeout")


class Metric(collections.namedtuple("Metric", "sum count min max")):
    """A metric over a call's rows; micro-batches add up in sum and count."""

    @property
    def mean(self):
        return self.sum / self.count if self.count else 0.0


class Reply:
    """What an operation gave back.

    reply["logprob"] is an output that was wanted; reply.outputs has them all by name. Attributes: sum, count, weight_sum, z_sum,
    degenerate_rows, sequence_count, nll_sum, nll_count (None where the operation does not give it), metrics (name to Metric), plan.
    """

    sum = count = weight_sum = z_sum = degenerate_rows = sequence_count = nll_sum = nll_count = None
    plan = ""

    def __init__(self, outputs, message):
        self.outputs = outputs
        for name, value in message.items():
            if name not in ("outputs", "metrics"):
                setattr(self, name, value)
        self.metrics = {
            name: Metric(m.get("sum", 0.0), m.get("count", 0), m.get("min", 0.0), m.get("max", 0.0))
            for name, m in message.get("metrics", {}).items()}

    def __getitem__(self, name):
        return self.outputs[name]

    def __repr__(self):
        return (f"Reply(outputs={sorted(self.outputs)}, sum={self.sum}, count={self.count}, "
                f"metrics={sorted(self.metrics)})")


class Limbo:
    """Tensors of calls that failed without an answer. They are held until a later call of the session has come back, for a device's calls
    run in order; only then is it certain that the server has let go of them. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._held = []  # (serial number, items)
        self._next = 0

    def hold(self, items):
        with self._lock:
            self._held.append((self._next, items))
            self._next += 1

    def mark(self):
        """Taken before a call is sent."""
        with self._lock:
            return self._next

    def release(self, mark):
        """After that call has succeeded: what was held before it may go."""
        if not self._held:
            return
        with self._lock:
            gone = [held for held in self._held if held[0] < mark]
            self._held = [held for held in self._held if held[0] >= mark]
        del gone  # outside the lock: what ends with it may call back into the pool

    def __len__(self):
        return len(self._held)


def run_op(client, op, values, want=(), out=None, batch_invariant=False, gradient_filter=None,
           workspace_limit=0, donate=(), timeout=None, wait=True):
    """Runs `op` (schema.Op) with `values` by field name. The documentation is that of lossd.ops.

    wait: False leaves out the numbers of the reply where that saves a wait (embedded mode on a GPU).
    """
    if not hasattr(client, "limbo"):
        raise type_error("client", "a lossd.Client, which lossd.connect() gives", type(client).__name__)
    key = prepared = None
    if client.is_embedded:
        key = client.calls.key(op, values, want, out, batch_invariant, gradient_filter, workspace_limit, donate)
        prepared = client.calls.get(key)
        if prepared is not None:
            return prepared.run(values, out, wait)
    envelope = _envelope(batch_invariant, gradient_filter, workspace_limit, donate, timeout)
    out = out or {}
    want = (want,) if isinstance(want, str) else tuple(want)
    arrays, sent = {}, {}
    leader = None
    for rule in op.inputs:  # in the order of the descriptor: hidden comes first
        value = values.get(rule.name)
        if value is None:
            continue
        if rule.is_tensor:
            if rule.dims == ("Upstream",) and hasattr(value, "reshape"):
                value = value.reshape(-1)  # one extent on the wire, where other row tensors may have several
            arrays[rule.name] = array = tensors.convert(rule, value, leader)
            leader = leader or array
        else:
            _put(sent, rule, _scalar(rule, value))
    if leader is None:
        raise field_error(op.inputs[0].name, "given", "absent")
    placement = place(client, leader)
    outputs = {}
    for name, array in arrays.items():
        _put(sent, op.fields[name], placement.input(op.fields[name], array))
    for name, target in out.items():
        rule = _output_rule(op, name)
        if not tensors.is_torch(target) and not tensors.is_numpy(target):
            raise type_error(name, "a tensor or an array, which receives the output", type(target).__name__)
        array = tensors.convert(rule, target, leader)
        adds = values.get(rule.tensor.get("mode", ""))
        brings = adds is not None and str(adds).upper().endswith("ACCUMULATE")
        _put(sent, rule, placement.destination(rule, array, brings))
        outputs[name] = target
    dims = _dims(op, arrays, values)
    for name in want:
        if name in outputs:
            continue
        rule = _output_rule(op, name)
        if str(values.get(rule.tensor.get("mode", ""))).upper().endswith("ACCUMULATE"):
            raise field_error(rule.tensor["mode"], f"OVERWRITE where {name} is not in out: there is nothing to add to",
                              "ACCUMULATE")
        shape, dtype = _output_form(rule, arrays, dims)
        tensor, result = placement.output(rule, shape, dtype, leader)
        _put(sent, rule, tensor)
        outputs[name] = result.reshape(()) if rule.dims == ("1",) else result

    request = {"ops": [{op.name: sent}], **envelope}
    mark = client.limbo.mark()
    try:
        request.update(placement.ready())
        reply = placement.run(request, timeout)
    except LossdError as error:
        if error.code in _MAY_STILL_RUN:
            client.limbo.hold((placement.keep, outputs))
        raise
    finally:
        placement.release()
    client.limbo.release(mark)
    placement.finish()
    if key is not None:
        client.calls.keep(key, op, arrays, out, outputs, request)
    return Reply(outputs, reply["ops"][0] if reply.get("ops") else {})


def _envelope(batch_invariant, gradient_filter, workspace_limit, donate, timeout):
    """Fields of lossd.v1.RunRequest beside operation and tensors."""
    def check(name, value, kind, allowed, must_be):
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise type_error(name, must_be, repr(value))
        if not allowed(value):
            raise field_error(name, must_be, repr(value))

    check("batch_invariant", batch_invariant, bool, lambda value: True, "True or False")
    check("workspace_limit", workspace_limit, numbers.Integral, lambda value: 0 <= value < 1 << 64, "bytes, an integer >= 0")
    if gradient_filter is not None:  # the server knows its bounds
        check("gradient_filter", gradient_filter, numbers.Real, lambda value: True, "a number")
    if timeout is not None:
        check("timeout", timeout, numbers.Real, lambda value: value > 0, "seconds, a number > 0")
    fields = {"batch_invariant": True} if batch_invariant else {}
    if gradient_filter is not None:
        fields["gradient_filter"] = gradient_filter
    if workspace_limit:
        fields["workspace_limit"] = workspace_limit
    if donate:
        fields["donate"] = [donate] if isinstance(donate, str) else list(donate)
    return fields


def _put(message, rule, value):
    for name in rule.path:
        message = message.setdefault(name, {})
    message[rule.name] = value


def _entries(rule, value):
    """A list of dicts as the wire's; the server names what is wrong in an entry, this only what has no place on the wire."""
    if isinstance(value, (dict, str)) or not hasattr(value, "__iter__"):
        raise type_error(rule.name, "a list of dicts", repr(value))
    entries = []
    for index, entry in enumerate(value):
        sent = {}
        if not isinstance(entry, dict):
            raise type_error(f"{rule.name}[{index}]", "a dict of " + ", ".join(rule.elements), repr(entry))
        for name, part in entry.items():
            place = f"{rule.name}[{index}].{name}"
            if name not in rule.elements:
                raise field_error(place, "one of " + ", ".join(rule.elements), "unknown" + did_you_mean(name, rule.elements))
            if part is not None:
                sent[name] = _scalar(rule.elements[name], part, place)
        entries.append(sent)
    return entries


def _scalar(rule, value, name=None):
    if rule.elements:
        return _entries(rule, value)
    kind = rule.field.kind
    try:
        if kind == "enum":
            if not isinstance(value, str):
                raise TypeError
            number = rule.field.type.numbers.get(value.upper())
            if not number:
                raise TypeError
            return number
        if kind == "double":
            return float(value)
        if kind == "bool":
            if value not in (True, False):
                raise TypeError
            return bool(value)
        if kind == "int64":
            if int(value) != value or not -(1 << 63) <= value < 1 << 63:
                raise TypeError
            return int(value)
        if not isinstance(value, str):
            raise TypeError
        return value
    except (TypeError, ValueError, OverflowError):
        names = {"enum": lambda: ", ".join(rule.field.type.meaningful()), "double": lambda: "a number",
                 "bool": lambda: "True or False", "int64": lambda: "an integer of 64 bits"}
        hint = did_you_mean(value, rule.field.type.meaningful()) if kind == "enum" else ""
        raise field_error(name or rule.name, names.get(kind, lambda: "text")(), repr(value) + hint) from None


def _output_rule(op, name):
    rule = op.fields.get(name)
    if rule is None or not rule.is_output:
        known = [r.name for r in op.outputs]
        raise field_error("want", "among " + ", ".join(known), f"{name}{did_you_mean(name, known)}")
    return rule


def _dims(op, arrays, values):
    """Extents by dimension name, as the first tensor that has one says; N is a tuple. The server checks that all agree."""
    dims = {"TopK": values.get("top_k")}
    for name, array in arrays.items():
        rule = op.fields[name]
        lead = len(array.shape) - len(rule.dims) + 1
        for d, dim in enumerate(rule.dims):
            factor, name, plus = parse_dim(dim)
            if name == "N":
                dims.setdefault("N", array.shape[:max(lead, 0)])
            elif lead + d - 1 >= 0 and lead + d - 1 < len(array.shape) and name:
                dims.setdefault(name, (array.shape[lead + d - 1] - plus) // factor)
    return dims


class _Form:
    """Extents and element type of a tensor, whatever it is: torch's fake ones have no memory."""

    def __init__(self, tensor):
        self.shape = tuple(tensor.shape) or (1,)
        self.dtype = tensors.dtype_number(tensor.dtype)


def output_forms(op, given, options, wanted):
    """Shape, number of the element type and whether it is bool, of each wanted output of a call with these torch tensors and options."""
    arrays = {name: _Form(tensor) for name, tensor in given.items()}
    dims = _dims(op, arrays, options)
    forms = []
    for name in wanted:
        rule = _output_rule(op, name)
        shape, dtype = _output_form(rule, arrays, dims)
        forms.append(((), dtype, False) if rule.dims == ("1",) else (shape, dtype, rule.dtypes == (6,)))
    return forms


def _output_form(rule, arrays, dims):
    """Shape and element type of an output that is made here: grad_x is like x, others have the type that their rule says."""
    twin = arrays.get(rule.name[5:]) if rule.name.startswith("grad_") else None
    if twin is not None:
        return twin.shape, twin.dtype
    shape = ()
    for dim in rule.dims:
        factor, name, plus = parse_dim(dim)
        extent = dims.get(name) if name else plus
        if name and isinstance(extent, int):
            extent = factor * extent + plus
        if extent is None:
            missing = rule.name[5:] if rule.name.startswith("grad_") else \
                {"TopK": "top_k", "K": "ids"}.get(dim, dim)
            raise field_error(missing, f"given when {rule.name} is wanted", "absent")
        shape += extent if isinstance(extent, tuple) else (extent,)
    like = [arrays[name].dtype for name in rule.tensor.get("like", "").split() if name in arrays]
    return shape, (like + [rule.dtypes[0]])[0]
