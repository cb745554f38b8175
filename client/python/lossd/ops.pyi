from typing import Callable

from .calls import Reply

# Made from the descriptor at run time: one function for each operation, op(client, *, want=(), out=None, **fields).
def __getattr__(name: str) -> Callable[..., Reply]: ...
def __dir__() -> list[str]: ...
