"""What goes wrong, with the field that is at fault."""


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
