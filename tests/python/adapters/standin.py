"""Modules that stand in for a package that is not installed, with the calling convention that an adapter meets."""

import sys
import types


def install(monkeypatch, modules):
    """Puts modules, {dotted name: {attribute: value}}, and their parents into sys.modules for a test; returns them by name."""
    made = {}
    for name, attributes in modules.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            if path not in made:
                made[path] = types.ModuleType(path)
                made[path].__path__ = []
                monkeypatch.setitem(sys.modules, path, made[path])
                if count > 1:
                    setattr(made[".".join(parts[:count - 1])], parts[count - 1], made[path])
        for attribute, value in attributes.items():
            setattr(made[name], attribute, value)
    return made


def remove(monkeypatch, package):
    """Makes `import package` fail for a test."""
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
