"""Protocol buffers without a dependency: messages are dicts, their types come from a FileDescriptorSet.

    types = Types(descriptor_set_bytes)
    data = types["lossd.v1.RunRequest"].encode({"ops": [{"linear_logprob": {...}}]})

Absent fields are absent keys; enums are their numbers; bytes are bytes-like; maps are dicts. Only what proto2 files of this
project use is here: no groups, no extensions in values other than the options of descriptors.
"""

import struct

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string",
    11: "message", 12: "bytes", 13: "uint32", 14: "enum",
}
_PACKABLE = {"double", "float", "int64", "uint64", "int32", "bool", "uint32", "enum"}
_SIGNED = {"int64", "int32", "enum"}


def put_varint(out, value):
    """Appends a base-128 number; negative ones in 64-bit two's complement."""
    if value < 0:
        value += 1 << 64
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def get_varint(data, at):
    """The number at `at`, and where the next byte is."""
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7


def scan(data):
    """Yields (field number, wire type, value) of a serialized message; values of length-delimited fields are memoryviews."""
    data = memoryview(data)
    at, end = 0, len(data)
    while at < end:
        key, at = get_varint(data, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = get_varint(data, at)
        elif wire_type == _BYTES:
            size, at = get_varint(data, at)
            value = data[at:at + size]
            at += size
        elif wire_type == _FIXED64:
            value = data[at:at + 8]
            at += 8
        elif wire_type == _FIXED32:
            value = data[at:at + 4]
            at += 4
        else:
            raise ValueError(f"wire type {wire_type} in a message")
        if at > end:
            raise ValueError("a message ends too early")
        yield key >> 3, wire_type, value


class EnumType:
    """Values of an enum: `names` by number, `numbers` by short and by full name."""

    def __init__(self, full_name, values):
        self.full_name = full_name
        name = full_name.rsplit(".", 1)[-1]
        prefix = "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper() + "_"
        self.names, self.numbers = {}, {}
        for value, number in values:
            short = value[len(prefix):] if value.startswith(prefix) else value
            self.names[number] = short
            self.numbers[short] = self.numbers[value] = number

    def meaningful(self):
        """Short names of all values but the unspecified one."""
        return [name for number, name in self.names.items() if name != "UNSPECIFIED"]


class Field:
    """One field of a message type."""

    def __init__(self, name, number, kind, repeated, type_name="", default="", options=b""):
        self.name, self.number, self.kind, self.repeated = name, number, kind, repeated
        self.type_name, self.options = type_name, options
        self.default_text = default
        self.type = None  # MessageType or EnumType, once linked
        wire_type = {"double": _FIXED64, "float": _FIXED32}.get(
            kind, _BYTES if kind in ("string", "bytes", "message") else _VARINT)
        tag = bytearray()
        put_varint(tag, number << 3 | wire_type)
        self.tag = bytes(tag)

    def put(self, out, value):
        kind = self.kind
        out += self.tag
        if kind == "message":
            data = self.type.encode(value)
            put_varint(out, len(data))
            out += data
        elif kind == "bytes":
            put_varint(out, len(value))
            out += value
        elif kind == "string":
            data = value.encode()
            put_varint(out, len(data))
            out += data
        elif kind == "double":
            out += struct.pack("<d", value)
        elif kind == "float":
            out += struct.pack("<f", value)
        else:
            put_varint(out, int(value))

    def get(self, value):
        kind = self.kind
        if kind == "message":
            return self.type.decode(value)
        if kind == "string":
            return bytes(value).decode("utf-8", "replace")
        if kind == "bytes":
            return bytes(value)
        if kind == "double":
            return struct.unpack("<d", value)[0]
        if kind == "float":
            return struct.unpack("<f", value)[0]
        if kind == "bool":
            return value != 0
        if kind in _SIGNED and value >= 1 << 63:
            return value - (1 << 64)
        return value

    def unpack(self, data):
        """Values of a packed repeated field."""
        at = 0
        size = {"double": 8, "float": 4}.get(self.kind)
        while at < len(data):
            if size:
                value, at = data[at:at + size], at + size
            else:
                value, at = get_varint(data, at)
            yield self.get(value)


class MessageType:
    """A message: its fields, and how dicts of it are written and read."""

    def __init__(self, full_name, fields, options=b"", is_map_entry=False):
        self.full_name = full_name
        self.fields = fields
        self.options = options
        self.is_map_entry = is_map_entry
        self.by_name = {field.name: field for field in fields}
        self.by_number = {field.number: field for field in fields}

    @property
    def name(self):
        return self.full_name.rsplit(".", 1)[-1]

    def encode(self, message):
        """Serialized bytes of a dict. Raises KeyError for a name that is no field."""
        out = bytearray()
        for name, value in message.items():
            field = self.by_name.get(name)
            if field is None:
                raise KeyError(f"{self.full_name} has no field {name}")
            if not field.repeated:
                field.put(out, value)
            elif field.kind == "message" and field.type.is_map_entry:
                for key, item in value.items():
                    field.put(out, {"key": key, "value": item})
            else:
                for item in value:
                    field.put(out, item)
        return bytes(out)

    def decode(self, data):
        """The dict of serialized bytes. Fields that this build does not know are left out."""
        message = {}
        for number, wire_type, value in scan(data):
            field = self.by_number.get(number)
            if field is None:
                continue
            if not field.repeated:
                message[field.name] = field.get(value)
            elif field.kind == "message" and field.type.is_map_entry:
                entry = field.get(value)
                message.setdefault(field.name, {})[entry["key"]] = entry.get("value", {})
            elif wire_type == _BYTES and field.kind in _PACKABLE:
                message.setdefault(field.name, []).extend(field.unpack(value))
            else:
                message.setdefault(field.name, []).append(field.get(value))
        return message


def _group(data):
    """Fields of a message by number, each with all its values."""
    fields = {}
    for number, _, value in scan(data):
        fields.setdefault(number, []).append(value)
    return fields


def _text(fields, number):
    return bytes(fields[number][-1]).decode() if number in fields else ""


class Types:
    """All message and enum types of a FileDescriptorSet, by full name."""

    def __init__(self, descriptor_set):
        self._types = {}
        # Field numbers here and below are those of google/protobuf/descriptor.proto.
        for file in _group(descriptor_set).get(1, []):
            parts = _group(file)
            package = _text(parts, 2)
            for message in parts.get(4, []):
                self._add_message(package, message)
            for enum in parts.get(5, []):
                self._add_enum(package, enum)
        for item in self._types.values():
            for field in getattr(item, "fields", ()):
                if field.type_name:
                    field.type = self._types[field.type_name]

    def __getitem__(self, full_name):
        return self._types[full_name]

    def _add_message(self, scope, data):
        parts = _group(data)
        full_name = f"{scope}.{_text(parts, 1)}"
        for nested in parts.get(3, []):
            self._add_message(full_name, nested)
        for enum in parts.get(4, []):
            self._add_enum(full_name, enum)
        fields = []
        for field in parts.get(2, []):
            f = _group(field)
            kind = _KINDS.get(f[5][-1])
            if kind is None:  # groups and fixed integers: in descriptor.proto's own files at most
                continue
            fields.append(Field(_text(f, 1), f[3][-1], kind, f[4][-1] == 3,
                                _text(f, 6).lstrip("."), _text(f, 7), bytes(f.get(8, [b""])[-1])))
        options = bytes(parts.get(7, [b""])[-1])
        is_map_entry = _group(options).get(7, [0])[-1] == 1
        self._types[full_name] = MessageType(full_name, fields, options, is_map_entry)

    def _add_enum(self, scope, data):
        parts = _group(data)
        values = []
        for value in parts.get(2, []):
            v = _group(value)
            values.append((_text(v, 1), v.get(2, [0])[-1]))
        full_name = f"{scope}.{_text(parts, 1)}"
        self._types[full_name] = EnumType(full_name, values)

    def extension(self, options, number, type_name):
        """The option `number` of serialized options, decoded as a message; None if absent."""
        values = _group(options).get(number)
        return self._types[type_name].decode(values[-1]) if values else None


def comments(descriptor_set):
    """Leading comments of a FileDescriptorSet with source information, by full name of message or field."""
    found = {}
    for file in _group(descriptor_set).get(1, []):
        parts = _group(file)
        package = _text(parts, 2)
        messages = [_group(message) for message in parts.get(4, [])]
        for info in parts.get(9, []):
            for location in _group(info).get(1, []):
                entry = _group(location)
                text = " ".join(_text(entry, 3).split())
                if not text:
                    continue
                path = [number for chunk in entry.get(1, []) for number in _path(chunk)]
                if len(path) == 2 and path[0] == 4:
                    found[f"{package}.{_text(messages[path[1]], 1)}"] = text
                elif len(path) == 4 and path[0] == 4 and path[2] == 2:
                    message = messages[path[1]]
                    field = _group(message[2][path[3]])
                    found[f"{package}.{_text(message, 1)}.{_text(field, 1)}"] = text
    return found


def _path(chunk):
    if isinstance(chunk, int):
        return [chunk]
    at, numbers = 0, []
    while at < len(chunk):
        number, at = get_varint(chunk, at)
        numbers.append(number)
    return numbers
