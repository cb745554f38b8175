"""Packages that an adapter works with, imported when they are needed."""

import importlib


def require(module, package, tested, purpose):
    """The module, imported.

    Args:
      module: dotted name. package: what pip calls it. tested: versions that the adapter was tested with. purpose: who needs it.
    Raises ImportError that says all of these, where the module or something that it imports is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module}, which cannot be imported ({error}): pip install '{package}' (tested with {tested})",
                          name=error.name) from error


def seam(owner, name, package, tested):
    """The attribute `name` of `owner`, which an adapter replaces. Raises ImportError where this version has none."""
    found = getattr(owner, name, None)
    if found is None:
        raise ImportError(f"{getattr(owner, '__name__', owner)} has no {name}: this version of {package} is not the one that the "
                          f"adapter knows (tested with {tested})")
    return found
