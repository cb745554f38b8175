"""The client of modules that are given none."""

import threading

from .client import connect


class _Default:
    """Stands for the default client in a call."""

    number = -1  # in a compiled graph, like Client.number

    def __repr__(self):
        return "lossd.defaults.DEFAULT"


DEFAULT = _Default()
_lock = threading.Lock()
_default = []


def default_client():
    """The client of set_default_client(), else one of connect("embedded"), made on the first call."""
    with _lock:
        if not _default:
            _default.append(connect("embedded"))
        return _default[0]


def set_default_client(client):
    """Makes `client` that of modules that are given none; None: embedded again, on the next use. Returns the former one, or None."""
    with _lock:
        former = _default[0] if _default else None
        _default[:] = [] if client is None else [client]
        return former
