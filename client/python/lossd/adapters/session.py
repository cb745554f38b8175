"""The client of adapters that are given none."""

from ..defaults import default_client


def client_or_default(client=None):
    """`client`, or lossd.default_client(): that of lossd.set_default_client(), else an embedded one."""
    return default_client() if client is None else client
