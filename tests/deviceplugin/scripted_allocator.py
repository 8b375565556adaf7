"""An allocator with the answers of a test."""

from vgpu.schemes.codec import ContainerEdits


class ScriptedAllocator:
    """``allocating`` and ``prestarting`` are called with resource and IDs."""

    def __init__(self):
        self.allocating = lambda resource, ids: ("", ContainerEdits({}))
        self.prestarting = lambda resource, ids: None

    def allocate(self, resource, ids):
        return self.allocating(resource, ids)

    def prestart(self, resource, ids):
        self.prestarting(resource, ids)


def raises(error):
    """A call that does."""

    def call(*_):
        raise error

    return call
