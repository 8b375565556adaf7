"""Plain manifests for people without Helm, rendered from the chart: deploy/manifests/.

    python -m deploy.manifests --helm PROGRAM [--check]
    python -m deploy.manifests --helm PROGRAM --folder dist/manifests --image REPOSITORY@DIGEST

The table reports of each file with which values, and of which templates, it is made. Dashboards are
not among them: grafana/dashboards has the files themselves.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import yaml

from deploy.generate import CHART, ROOT
from grafana.severities import BY_DEFAULT

FOLDER: Final = ROOT / "deploy" / "manifests"
NAMESPACE: Final = "vgpu-system"
PLACEHOLDER: Final = "registry.invalid/vgpu"
"""The image's repository where none is published: a name that no registry can have (RFC 2606)."""
KUBERNETES: Final = "1.31.0"
"""The version they are rendered for; older ones from 1.26 take them, too, with a warning."""

HEADER: Final = (
    "# Rendered from deploy/chart/vgpu by deploy/manifests.py. Do not edit: run `make manifests`.\n"
)

_HELMS: Final = re.compile(r"# Source: | +(app\.kubernetes\.io/managed-by|helm\.sh/chart): ")

Values = Mapping[str, Any]


class Manifest(msgspec.Struct, frozen=True):
    """One file.

    Attributes:
        about: what it is, and what it needs beside itself; a sentence for its first line.
        templates: which of the chart's, each a path below templates/.
        values: what differs from the chart's own.
    """

    about: str
    templates: tuple[str, ...]
    values: Values = {}


_UNITS: Final = {"units": {"volcanoMemoryFactor": 1, "gpushareMemoryUnit": "GiB"}}
_CONFIG: Final = {"config": {"every": "2m"}}  # the default, to be seen by who edits the file
_APPLY: Final = {"mode": "apply", "gpushare": True, **_CONFIG, "node": _CONFIG}
_NODE: Final = {"reconciler": {**_APPLY, "node": {"daemonSet": True, **_CONFIG}}}
_SCHEDULER: Final = {
    "scheduler": {
        "enabled": True,
        "tlsSecret": "vgpu-scheduler-tls",
        "clientSans": ["kube-scheduler"],
    }
}
_KUBESHARE: Final = {"kubeshare": {"enabled": True}}
_TOKENS: Final = {"tokens": {"enabled": True}}


def _plugin(scheme: str, unit: str, what: str) -> Manifest:
    about = f"The device plugin of {scheme}, with the node's reconciler. {what}"
    templates = ("device-plugin/rbac", "device-plugin/daemonset", "reconciler-node/configmap")
    values = {
        "devicePlugin": {"schemes": {scheme: {"enabled": True}}},
        "units": {unit: _UNITS["units"][unit]} if unit else {},
        "reconciler": _APPLY,
    }
    return Manifest(about, templates, values)


_WRITERS: Final = {
    "accountPolicy": {"enabled": True},
    "devicePlugin": {
        "schemes": {
            scheme: {"enabled": True, "nodeSelector": {"scheme": scheme}}  # a node has one of them
            for scheme in ("volcano", "gpushare", "gaia")
        }
    },
    **_UNITS,
    "reconciler": _APPLY,
    **_SCHEDULER,
    **_KUBESHARE,
}
"""Every program that writes: one policy names the accounts of all of them."""


MANIFESTS: Final = {
    "namespace.yaml": Manifest(
        "Namespace and PriorityClass of all that is here. Comes first.",
        ("namespace", "priorityclass"),
        {"namespace": {"create": True}},
    ),
    "account-policy.yaml": Manifest(
        "Limits the accounts of all programs here to what each writes. Needs Kubernetes 1.30. Add"
        " --require-node-token to the programs of DaemonSets.",
        ("accounts/policy",),
        _WRITERS,
    ),
    "exporter.yaml": Manifest(
        "The exporter on every node, in the profile standard.",
        ("exporter/serviceaccount", "exporter/daemonset"),
    ),
    "exporter-minimal.yaml": Manifest(
        "The exporter as a user without rights. In place of exporter.yaml.",
        ("exporter/serviceaccount", "exporter/daemonset"),
        {"exporter": {"profile": "minimal"}},
    ),
    "exporter-full.yaml": Manifest(
        "The exporter with all it can use: SYS_PTRACE, the API server. In place of exporter.yaml.",
        ("exporter/serviceaccount", "exporter/rbac", "exporter/daemonset"),
        {"exporter": {"profile": "full", "api": True}},
    ),
    "device-plugin-volcano.yaml": _plugin(
        "volcano", "volcanoMemoryFactor", "One unit of volcano.sh/vgpu-memory is 1 MiB."
    ),
    "device-plugin-gpushare.yaml": _plugin(
        "gpushare", "gpushareMemoryUnit", "One unit of aliyun.com/gpu-mem is 1 GiB."
    ),
    "device-plugin-gaia.yaml": _plugin("gaia", "", "In place of gpu-manager."),
    "reconciler-rbac.yaml": Manifest(
        "The rights of the cluster's reconciler.", ("reconciler/rbac",), {"reconciler": _APPLY}
    ),
    "reconciler-rbac-gpushare.yaml": Manifest(
        "One right more for it, where gpushare is used.",
        ("reconciler/rbac-gpushare",),
        {"reconciler": _APPLY},
    ),
    "reconciler-deployment.yaml": Manifest(
        "The cluster's reconciler as a Deployment. Needs reconciler-rbac.yaml.",
        ("reconciler/configmap", "reconciler/deployment"),
        {"reconciler": _APPLY},
    ),
    "reconciler-cronjob.yaml": Manifest(
        "The cluster's reconciler as a CronJob. Needs reconciler-rbac.yaml.",
        ("reconciler/configmap", "reconciler/cronjob"),
        {"reconciler": {**_APPLY, "kind": "CronJob"}},
    ),
    "reconciler-node-rbac.yaml": Manifest(
        "The rights of the node's reconciler.", ("reconciler-node/rbac",), _NODE
    ),
    "reconciler-node.yaml": Manifest(
        "The node's reconciler, where the device plugin is an original's. Needs"
        " reconciler-node-rbac.yaml.",
        ("reconciler-node/configmap", "reconciler-node/daemonset"),
        _NODE,
    ),
    "bill-close.yaml": Manifest(
        "A CronJob that closes days for `vgpu bill`, and its volume. Set Prometheus' address.",
        ("bill/serviceaccount", "bill/claim", "bill/cronjob"),
        {
            "bill": {
                "enabled": True,
                "prometheus": "http://prometheus-operated.monitoring.svc:9090",
            }
        },
    ),
    "fleet.yaml": Manifest(
        "The page about all shared GPUs. Needs a Secret vgpu-web whose web-config.yaml requires"
        " TLS, and passwords or client certificates.",
        ("fleet/rbac", "fleet/deployment"),
        {"fleet": {"enabled": True}, "web": {"configSecret": "vgpu-web"}},
    ),
    "feedback.yaml": Manifest(
        "The feedback to HAMi-core, on nodes without HAMi's monitor.",
        ("feedback/serviceaccount", "feedback/daemonset"),
        {"feedback": {"enabled": True}},
    ),
    "scheduler-rbac.yaml": Manifest(
        "The rights of the scheduler.", ("scheduler/rbac",), _SCHEDULER
    ),
    "scheduler.yaml": Manifest(
        "The scheduler. Needs scheduler-rbac.yaml, and a Secret vgpu-scheduler-tls with its"
        " certificate (tls.crt, tls.key) and the CA of its clients (ca.crt).",
        ("scheduler/deployment",),
        _SCHEDULER,
    ),
    "scheduler-warnings.yaml": Manifest(
        "Warns about pods that HAMi's webhook would refuse. Not beside scheduler-policies.yaml.",
        ("scheduler/policies",),
        _SCHEDULER,
    ),
    "scheduler-policies.yaml": Manifest(
        "Refuses pods that HAMi's webhook would complete or refuse, with the line to add.",
        ("scheduler/policies",),
        {"scheduler": {"policies": {"validate": True}}},
    ),
    "kubeshare-crd.yaml": Manifest(
        "KubeShare's kind SharePod. Not where the cluster has it already.",
        ("kubeshare/crd",),
        _KUBESHARE,
    ),
    "kubeshare-rbac.yaml": Manifest(
        "The rights of KubeShare's controllers and of their node component. The policy needs"
        " Kubernetes 1.30.",
        ("kubeshare/rbac", "kubeshare/policy"),
        _KUBESHARE,
    ),
    "kubeshare.yaml": Manifest(
        "KubeShare's controllers and their node component. Needs kubeshare-rbac.yaml and"
        " kubeshare-crd.yaml.",
        ("kubeshare/priorityclass", "kubeshare/deployment", "kubeshare/daemonset"),
        _KUBESHARE,
    ),
    "tokens.yaml": Manifest(
        "The token daemon, in place of Gemini's gem-schd and gem-pmgr. Comes before pods that share"
        " GPUs.",
        ("tokens/serviceaccount", "tokens/daemonset"),
        _TOKENS,
    ),
    "podmonitors.yaml": Manifest(
        "For Prometheus Operator: who is scraped.",
        ("monitoring/podmonitors",),
        {
            **_UNITS,
            "monitoring": {"kind": "PodMonitor"},
            "devicePlugin": {"schemes": {"volcano": {"enabled": True}}},
            "feedback": {"enabled": True},
            **_SCHEDULER,
            **_KUBESHARE,
            **_TOKENS,
        },
    ),
    "prometheusrule.yaml": Manifest(
        f"For Prometheus Operator: alerts, of which {len(BY_DEFAULT)} page or warn, and recording"
        " rules.",
        ("monitoring/rules",),
        {"rules": {"enabled": True}},
    ),
    "prometheusrule-all.yaml": Manifest(
        "Every alert that needs a person pages or warns. In place of prometheusrule.yaml.",
        ("monitoring/rules",),
        {"rules": {"enabled": True}, "monitoring": {"alerts": "all"}},
    ),
}


def rendered(helm: str, manifest: Manifest, image: Values) -> str:
    """A manifest's text, with the chart's values ``image``.

    Raises subprocess.CalledProcessError, with helm's own words in stderr.
    """
    show = [f"--show-only=templates/{name}.yaml" for name in manifest.templates]
    command = [helm, "template", "vgpu", str(CHART), f"--namespace={NAMESPACE}", "--values=-"]
    text = subprocess.run(  # noqa: S603  # the program that the caller named
        [*command, f"--kube-version={KUBERNETES}", *show],
        input=yaml.safe_dump({**manifest.values, "image": dict(image)}),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return f"{HEADER}# {manifest.about}\n" + "".join(_lines(text))


def _lines(text: str) -> Iterator[str]:
    """Without origins, labels that only Helm may claim, and lines that a template left empty."""
    for line in re.sub(r"\A---\n", "", text).splitlines(keepends=True):
        if line.strip() and not _HELMS.match(line):
            yield line


@click.command()
@click.option("--helm", default="helm", show_default=True, help="The program.", metavar="PROGRAM")
@click.option("--check", is_flag=True, help="Write nothing; fail if a file is out of date.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=FOLDER,
    help="Where they are written. Default: deploy/manifests.",
)
@click.option(
    "--image",
    default=PLACEHOLDER,
    show_default=True,
    metavar="REPOSITORY[@DIGEST]",
    help="The image that they name.",
)
def main(*, helm: str, check: bool, folder: Path, image: str) -> None:
    """Write, or check, the manifests."""
    stale = False
    folder.mkdir(exist_ok=True, parents=True)
    for path in folder.iterdir():
        if path.name not in MANIFESTS:
            stale = True
            click.echo(f"{path.name}: nothing makes it", err=True)
    repository, _, digest = image.partition("@")
    for name, manifest in MANIFESTS.items():
        path = folder / name
        text = rendered(helm, manifest, {"repository": repository, "digest": digest})
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            click.echo(f"{name} differs from the chart: run `make manifests`", err=True)
            stale = True
    sys.exit(check and stale)


def unpublished(folder: Path) -> list[Path]:
    """The manifests below a folder that name the placeholder in place of an image."""
    return [path for path in sorted(folder.rglob("*.yaml")) if PLACEHOLDER in path.read_text()]


if __name__ == "__main__":
    main()
