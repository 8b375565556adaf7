"""The README of the Helm chart, which registries of charts show. Pure."""

from typing import Final

from deploy.addressed import MADE
from deploy.project import Project
from deploy.values import table

_TEXT: Final = """\
<!-- {made} -->
# The Helm chart of vgpu

Truthful metrics, repair and allocation for GPUs that are shared in Kubernetes by Volcano vGPU,
HAMi, gpushare, gpu-manager or KubeShare: an exporter for each node, a reconciler, and a device
plugin. By default the chart installs the exporter on every node and the reconciler, which only
reports.

```console
$ helm install vgpu CHART --namespace vgpu-system --create-namespace --values mine.yaml
$ helm test vgpu --namespace vgpu-system
```

The chart needs Kubernetes 1.26 or newer. The chart of a release names its image; the chart of the
source names none; an error at rendering has how to build, load and push one. `values.schema.json`
refuses unknown values.

The documentation has more on {pages}.

## Upgrades

{upgrades}

## Values
{values}"""

_PAGES: Final = {
    "install": "installation and privileges",
    "upgrading": "upgrades",
    "migrating": "migration from the original monitors and device plugins",
}


def chart_readme(project: Project, values: str, upgrades: str) -> str:
    """The README.

    Args:
        project: whose site has the pages that are linked; without a site they are named.
        values: the text of values.yaml.
        upgrades: what is to be done by hand, as in docs/upgrading.md.
    """
    pages = [
        f"[{title}]({project.site}/{page}.html)" if project.site else f"{title} (page {page})"
        for page, title in _PAGES.items()
    ]
    return _TEXT.format(
        made=MADE,
        pages=", ".join(pages),
        upgrades=upgrades.strip(),
        values=table(values).replace("\n## ", "\n### "),
    )
