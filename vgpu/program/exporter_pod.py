"""How a person reaches the exporter of a node: with kubectl and the chart's labels.

The demo has no such pod: a variable of its terminals has the node and the page of its exporter.
"""

import os
from collections.abc import Iterator
from typing import Final

NAMESPACE: Final = "vgpu-system"
LABELS: Final = "app.kubernetes.io/name=vgpu,app.kubernetes.io/component=exporter"
PORT: Final = 9394


DEMO_PAGE: Final = "VGPU_DEMO_PAGE"
"""The demo's variable: the node and the address of its exporter's page."""


def page_lines(node: str) -> Iterator[str]:
    """How to open the page of the exporter on a node; nothing if the demo has none there."""
    demo_node, _, url = os.environ.get(DEMO_PAGE, "").partition("=")
    if not url:
        yield ""
        yield f"The page of the node's exporter, http://localhost:{PORT}, is open after:"
        yield f"  {port_forward(node)}"
    elif node == demo_node:
        yield ""
        yield f"The page of the node's exporter: {url}"


def port_forward(node: str) -> str:
    """The line that opens the page of the exporter on a node."""
    pods = f"kubectl -n {NAMESPACE} get pods -o name -l {LABELS}"
    pod = f"{pods} --field-selector spec.nodeName={node}"
    return f'kubectl -n {NAMESPACE} port-forward "$({pod})" {PORT}'
