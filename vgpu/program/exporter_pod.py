"""How a person reaches the exporter of a node, with kubectl and the chart's labels."""

from typing import Final

NAMESPACE: Final = "vgpu-system"
LABELS: Final = "app.kubernetes.io/name=vgpu,app.kubernetes.io/component=exporter"
PORT: Final = 9394


def port_forward(node: str) -> str:
    """The line that opens the page of the exporter on a node."""
    pods = f"kubectl -n {NAMESPACE} get pods -o name -l {LABELS}"
    pod = f"{pods} --field-selector spec.nodeName={node}"
    return f'kubectl -n {NAMESPACE} port-forward "$({pod})" {PORT}'
