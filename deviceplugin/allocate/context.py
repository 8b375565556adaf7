"""The node and the scheme, for the binder and the allocator."""

import msgspec

from deviceplugin.apiserver.pods import Pods
from deviceplugin.failpoints import Failpoint
from deviceplugin.ports import Injector
from deviceplugin.scheme_adapter import SchemeAdapter


class AllocateContext(msgspec.Struct, frozen=True):
    """The node and the scheme that containers are bound for.

    Attributes:
        adapter: the scheme's.
        node: the node's name.
        pods: the node's.
        injector: how a container gets its share.
        failpoint: called at every step.
    """

    adapter: SchemeAdapter
    node: str
    pods: Pods
    injector: Injector
    failpoint: Failpoint
