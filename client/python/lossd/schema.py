"""The operations, from the descriptor alone: fields, rules, defaults, and the text that documents them."""

from . import wire

_OP, _TENSOR, _SCALAR, _FLAT = 50101, 50101, 50102, 50103  # extension numbers of options.proto

# Element types by number of lossd.v1.DType: name, bytes.
DTYPES = {1: ("f32", 4), 2: ("bf16", 2), 3: ("f16", 2), 4: ("i32", 4), 5: ("i64", 8), 6: ("u8", 1)}
# Element types of a lossd.v1.DTypeSet, the preferred one first.
DTYPE_SETS = {1: (1, 2, 3), 2: (1,), 3: (5, 4), 4: (6,), 5: (4,)}


def parse_dim(dim):
    """Factor, name and addend of a dimension as a rule writes it: "2P+1" is (2, "P", 1); a number has no name."""
    if dim.isdigit():
        return 1, "", int(dim)
    name, plus = (dim[:-2], 1) if dim.endswith("+1") else (dim, 0)
    digits = len(name) - len(name.lstrip("0123456789"))
    return int(name[:digits] or 1), name[digits:], plus


class FieldRule:
    """One field of an operation, found by its leaf name; flat sub-messages are opened."""

    def __init__(self, path, field, types, comment):
        self.name = field.name
        self.path = path  # names of the sub-messages on the way
        self.field = field
        self.comment = comment
        self.tensor = types.extension(field.options, _TENSOR, "lossd.v1.TensorRule")
        self.scalar = types.extension(field.options, _SCALAR, "lossd.v1.ScalarRule") or {}
        self.is_tensor = field.type_name == "lossd.v1.Tensor"
        self.is_output = self.is_tensor and self.tensor.get("role", 0) == 1
        self.dims = tuple(self.tensor["shape"].split()) if self.is_tensor else ()
        self.dtypes = DTYPE_SETS[self.tensor["dtypes"]] if self.is_tensor else ()
        self.required = bool((self.tensor if self.is_tensor else self.scalar).get("required"))
        # Options of one entry, where the field is a list of sub-messages.
        self.elements = {}
        if field.repeated and field.kind == "message" and not self.is_tensor:
            self.elements = {f.name: FieldRule((), f, types, "") for f in field.type.fields}

    @property
    def default(self):
        """The option's default as a Python value; None if absence is its own meaning."""
        text = self.field.default_text
        if not text and self.field.kind != "string":
            return None
        kind = self.field.kind
        if kind == "double":
            return float(text)
        if kind == "bool":
            return text == "true"
        if kind == "enum":
            return self.field.type.names[self.field.type.numbers[text]]
        return text if kind == "string" else int(text)

    def describe(self):
        """What the field must be, in one line."""
        if self.is_tensor:
            names = "|".join(DTYPES[d][0] for d in self.dtypes)
            parts = [f"{names} [{', '.join(self.dims)}]"]
            if self.tensor.get("units"):
                parts.append(self.tensor["units"])
            if self.tensor.get("finite"):
                parts.append("finite")
            if "min_element" in self.tensor:
                parts.append(f"elements >= {self.tensor['min_element']:g}")
            if "takes" in self.tensor:
                parts.append(f"may take the memory of donated {self.tensor['takes']}")
        else:
            kind = self.field.kind
            if kind == "enum":
                kind = " | ".join(self.field.type.meaningful())
            if self.elements:
                kind = "list of dicts (" + ", ".join(
                    f"{e.name}: {e.describe()}" for e in self.elements.values()) + ")"
            parts = [kind]
            for key, sign in (("min", ">="), ("above", ">"), ("max", "<="), ("below", "<")):
                if key in self.scalar:
                    parts.append(f"{sign} {self.scalar[key]:g}")
            if self.scalar.get("units"):
                parts.append(self.scalar["units"])
            absent = self.scalar.get("absent")
            if absent is not None:
                parts.append(f"absent: {absent}")
            elif self.default is not None:
                parts.append(f"default {self.default!r}" if kind == "string" else f"default {self.default}")
            if self.scalar.get("unimplemented"):
                parts.append("not in this build")
        if self.required:
            parts.append("required")
        return "; ".join(parts)


class Op:
    """An operation: name in snake case, message type, fields by leaf name in the order of the descriptor."""

    def __init__(self, snake_name, message, types, comments):
        self.name = snake_name
        self.message = message
        self.info = types.extension(message.options, _OP, "lossd.v1.OpInfo") or {}
        self.comment = comments.get(message.full_name, "")
        self.fields = {}
        self._add(message, (), types, comments)

    def _add(self, message, path, types, comments):
        for field in message.fields:
            if _has_flag(field.options, _FLAT):
                self._add(field.type, path + (field.name,), types, comments)
            else:
                comment = comments.get(f"{message.full_name}.{field.name}", "")
                self.fields[field.name] = FieldRule(path, field, types, comment)

    @property
    def inputs(self):
        return [rule for rule in self.fields.values() if not rule.is_output]

    @property
    def outputs(self):
        return [rule for rule in self.fields.values() if rule.is_output]

    def document(self):
        """A docstring: what it computes, every field with its rule, every output."""
        lines = [self.comment or self.message.name, "", f"    {self.info.get('formula', '')}", "",
                 f"Source: {self.info.get('source', '')}.", "", "Args:"]
        for rule in self.inputs:
            lines.append(f"  {rule.name}: {rule.describe()}. {rule.comment}".rstrip())
        lines += ["", "Outputs (names for `want`, destinations for `out`):"]
        for rule in self.outputs:
            lines.append(f"  {rule.name}: {rule.describe()}. {rule.comment}".rstrip())
        if self.info.get("reply"):
            lines += ["", "Numbers in the reply: " + ", ".join(self.info["reply"]) + "."]
        return "\n".join(lines)


def _has_flag(options, number):
    return any(n == number and value for n, _, value in wire.scan(options))


class Schema:
    """Everything that the descriptors say. `documented` may be the same set with source information, for the comments."""

    def __init__(self, descriptor_set, documented=None):
        self.types = wire.Types(descriptor_set)
        comments = wire.comments(documented) if documented else {}
        self.run_request = self.types["lossd.v1.RunRequest"]
        self.run_reply = self.types["lossd.v1.RunReply"]
        self.ops = {field.name: Op(field.name, field.type, self.types, comments)
                    for field in self.types["lossd.v1.Op"].fields}
