"""Attributes of other packages, replaced until they are put back."""


class Switch:
    """Replacements that were made together. Not thread-safe; remove() in the reverse order of several switches on one attribute.

        with Switch().replace(module, "name", function): ...
    """

    def __init__(self):
        self._replaced = []  # (owner, name, what was there, whether it was the owner's own)

    def replace(self, owner, name, value):
        own = name in vars(owner)
        self._replaced.append((owner, name, vars(owner)[name] if own else None, own))
        setattr(owner, name, value)
        return self

    def remove(self):
        """Puts everything back; a second time does nothing."""
        while self._replaced:
            owner, name, value, own = self._replaced.pop()
            if own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)

    @property
    def active(self):
        return bool(self._replaced)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()
