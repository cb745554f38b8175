"""What goes wrong, with the field that is at fault."""

import difflib


class LossdError(RuntimeError):
    """A refused or failed call.

    Attributes:
      code: name of the status code, as in "INVALID_ARGUMENT" or "UNAVAILABLE".
      field: path of the wrong field, as in "clip_low"; "" if no field is at fault.
      must_be, is_: what the field must be, and what it is.
      reason: stable upper-case word for programs, as in "GPU_LOST"; mostly "".
      message: the whole text.
      op, op_index: operation, and its index in the request; "" and -1 if none.
      row: row (or element) whose data are wrong, -1 if none.
      retry_after_ms: earliest useful retry, 0 if not said.
    """

    def __init__(self, code, message="", *, field="", must_be="", is_="", reason="", op="",
                 op_index=-1, row=-1, retry_after_ms=0):
        self.code = code
        self.field = field
        self.must_be = must_be
        self.is_ = is_
        self.reason = reason
        self.op = op
        self.op_index = op_index
        self.row = row
        self.retry_after_ms = retry_after_ms
        if not message and field:
            message = f"{field}: must be {must_be}, is {is_}"
        self.message = message
        super().__init__(f"{code}: {message}")


def field_error(field, must_be, is_):
    """INVALID_ARGUMENT that was found before anything was sent."""
    return LossdError("INVALID_ARGUMENT", field=field, must_be=must_be, is_=str(is_))


class ArgumentTypeError(LossdError, TypeError):
    """INVALID_ARGUMENT because an argument is not of the kind that it must be: a TypeError that says the same as every LossdError."""


def type_error(field, must_be, is_):
    return ArgumentTypeError("INVALID_ARGUMENT", field=field, must_be=must_be, is_=str(is_))


def did_you_mean(name, known):
    """" (did you mean x?)" where one of the known names is like it, else ""; the case does not matter."""
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(str(name).lower(), folded, 1)
    return f" (did you mean {folded[close[0]]}?)" if close else ""


def unknown_keyword(function, name, known):
    return TypeError(f"{function}() got an unexpected keyword argument '{name}'{did_you_mean(name, known)}")
