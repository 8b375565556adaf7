"""The key under which the API server names the node of a pod's token."""

from typing import Final

NODE_KEY: Final = "authentication.kubernetes.io/node-name"
"""The key in ``userInfo.extra``."""

NODE_KEY_SINCE: Final = (1, 30)
"""The first Kubernetes whose tokens of pods have it, unless the feature is switched off."""

OWN_NODE_VALUE: Final = "accountPolicy.ownNode"
"""The chart's value that switches the rule off which needs the key."""
