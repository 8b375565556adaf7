"""The components of sharing systems, by the images and programs of their containers; pure.

:data:`COMPONENTS` has a row for each. Registries and their mirrors differ, so only the last part of
an image's name counts. Of command lines only the flags of a row are kept.

Names are from the manifests and charts of the projects: HAMi v2.10, volcano-vgpu-device-plugin
v1.12, Volcano 1.14, Kueue 0.17, gpushare-scheduler-extender and gpushare-device-plugin,
gpu-manager, gpu-admission, KubeShare releases 1.0 and 2.0, k8s-device-plugin v0.17, the GPU
Operator, container-engine-accelerators 992db812 (``cmd/nvidia_gpu/device-plugin.yaml``), KAI
Scheduler v0.17 (``deployments/kai-scheduler``, ``pkg/operator/operands``), and
KAI-resource-isolator 1.1 (``chart/kai-resource-isolator``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from vgpu.kube.installation import Workload, WorkloadContainer
from vgpu.model.reasons import Explained
from vgpu.schemes.nvidia.resources import GPU
from vgpu.schemes.registry import registry
from vgpu.schemes.resource_names import ORIGINAL_NAMES, role_of, roles

_LONGEST_VERSION: Final = 40
"""Maximum length of a printed version or flag, in characters."""

_LONGEST_NAME: Final = 340
"""Maximum length of a role and the name of its resource, in characters."""

_LONGEST_JSON: Final = 4096
"""Maximum length of a flag whose value is JSON, in characters."""

HAMIS: Final = "hami"
VOLCANOS: Final = "volcano"
GPUSHARE: Final = "gpushare"
GAIA: Final = "gaia"
KUBESHARE: Final = "kubeshare"
NVIDIA: Final = "nvidia"

GKE: Final = "GKE"
"""The system of the device plugin that GKE installs: a DaemonSet for each kind of node pool."""

KAI: Final = "KAI"
"""The system of KAI Scheduler's components; its operator makes a Deployment of each."""

KAI_ISOLATOR: Final = "KAI isolator"
"""The system of KAI-resource-isolator's components, by which HAMi-core limits KAI's shares."""

QUEUE_LABEL_FLAG: Final = "queue-label-key"
SHARING_FLAG: Final = "gpu-sharing-enabled"
LIMITS_FLAG: Final = "hami-core-enabled"
PLUGINS_FLAG: Final = "plugins"
"""Flags of KAI Scheduler's components."""

VGPU: Final = "vgpu"
"""The last part of the name of our image."""

MEMORY_FACTOR: Final = "volcano.memory-factor"
MEMORY_UNIT: Final = "gpushare.memory-unit"
NODE_TOKEN_FLAG: Final = "require-node-token"  # noqa: S105  # a flag


class ComponentRole(Explained):
    """What a component does."""

    DEVICE_PLUGIN = "device_plugin", "device plugin"
    SCHEDULER = "scheduler", "scheduler"
    MONITOR = "monitor", "monitor"
    FEEDBACK = "feedback", "feedback"
    EXPORTER = "exporter", "exporter"
    RECONCILER = "reconciler", "reconciler"
    NODE_RECONCILER = "node_reconciler", "reconciler of a node"
    CONTROLLER = "controller", "controllers"
    NODE_COMPONENT = "node_component", "component of a node"
    TOKEN_DAEMON = "token_daemon", "token daemon"
    OPERATOR = "operator", "operator"
    WEBHOOK = "webhook", "webhook"
    DRA_DRIVER = "dra_driver", "DRA driver"
    KUBE_SCHEDULER = "kube_scheduler", "kube-scheduler"
    QUEUE_MANAGER = "queue_manager", "queue manager"
    BINDER = "binder", "binder"
    POD_GROUPER = "pod_grouper", "pod grouper"
    LIBRARY = "library", "library"
    FLEET_PAGE = "fleet_page", "fleet page"


class ComponentRow(msgspec.Struct, frozen=True):
    """A component.

    Attributes:
        system: the sharing system for people; "" is Kubernetes itself.
        role: what it does.
        images: the last part of the names of its images.
        programs: names of its program or container; () if the image has no other.
        serves: names of the rows of :mod:`vgpu.schemes.registry` whose pods it serves or places.
        flags: the flags that are kept, without dashes.
        words: the first words of our own command line.
        places: the folder of its images, or the namespace, of which it has one: names such as
            ``scheduler`` are not enough; () if they are.
    """

    system: str
    role: ComponentRole
    images: tuple[str, ...]
    programs: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The component for people, such as "HAMi scheduler"."""
        return f"{self.system} {self.role.explanation}".lstrip()

    @property
    def release(self) -> tuple[str, ...]:
        """What its version is compared within: its images, or all that is from one release."""
        return self.places or self.images


_ROLE_OF: Final[Mapping[str, str]] = {
    VOLCANOS: "count",
    HAMIS: "count",
    GPUSHARE: "memory",
    GAIA: "cores",
}
"""The role of the resource that the device plugin of a row registers with the kubelet."""


def resource_of(name: str) -> str:
    """The resource that the device plugin of a row registers; "" of a row without one."""
    if name == NVIDIA:
        return GPU
    role = _ROLE_OF.get(name)
    names = registry().names.get(name)
    return str(getattr(names, role)) if role and names else ""


def plugin_resources() -> frozenset[str]:
    """The resources that the device plugins of all rows register."""
    return frozenset(map(resource_of, (*_ROLE_OF, NVIDIA)))


_OURS: Final = "vgpu"
_UNITS: Final = (MEMORY_FACTOR, MEMORY_UNIT)


def _plugin(system: str, name: str, *images: str, **fields: tuple[str, ...]) -> ComponentRow:
    return ComponentRow(
        system,
        ComponentRole.DEVICE_PLUGIN,
        images,
        serves=(name,),
        **fields,
    )


def _ours(
    role: ComponentRole, *words: str, serves: tuple[str, ...] = (), flags: tuple[str, ...] = ()
) -> ComponentRow:
    return ComponentRow(_OURS, role, (VGPU,), serves=serves, flags=flags, words=words)


_ROLE = ComponentRole
RESOURCE_NAME_FLAG: Final = "resource-name"
"""The flag with the name of the resource of GPUs: of HAMi's device plugin
(``cmd/device-plugin/nvidia/vgpucfg.go`` 67), and of the scheduler in releases without
device-config.yaml."""

_PLACES_OF_KAI: Final = ("kai-scheduler",)


def _of_kai(role: ComponentRole, *images: str, flags: tuple[str, ...] = ()) -> ComponentRow:
    return ComponentRow(KAI, role, images, flags=flags, places=_PLACES_OF_KAI)


def _of_isolator(role: ComponentRole, program: str) -> ComponentRow:
    return ComponentRow(KAI_ISOLATOR, role, ("kai-resource-isolator",), programs=(program,))


_HAMI: Final = ("hami", "k8s-vdevice")
_PLUGIN_OF_VOLCANO: Final = ("volcano-vgpu-device-plugin", "volcano-device-plugin")

COMPONENTS: Final[tuple[ComponentRow, ...]] = (
    _plugin(
        "HAMi",
        HAMIS,
        *_HAMI,
        programs=("nvidia-device-plugin", "device-plugin"),
        flags=(RESOURCE_NAME_FLAG,),
    ),
    ComponentRow(
        "HAMi", _ROLE.MONITOR, _HAMI, programs=("vGPUmonitor", "vgpu-monitor"), serves=(HAMIS,)
    ),
    ComponentRow(
        "HAMi",
        _ROLE.SCHEDULER,
        _HAMI,
        programs=("scheduler", "vgpu-scheduler-extender"),
        serves=(HAMIS,),
        flags=(RESOURCE_NAME_FLAG,),
    ),
    ComponentRow(
        "Volcano",
        _ROLE.MONITOR,
        _PLUGIN_OF_VOLCANO,
        programs=("vGPUmonitor", "monitor"),
        serves=(VOLCANOS,),
    ),
    _plugin("Volcano", VOLCANOS, *_PLUGIN_OF_VOLCANO, flags=("gpu-memory-factor",)),
    ComponentRow("Volcano", _ROLE.SCHEDULER, ("vc-scheduler",), serves=(VOLCANOS,)),
    ComponentRow("Volcano", _ROLE.CONTROLLER, ("vc-controller-manager",)),
    ComponentRow("Volcano", _ROLE.WEBHOOK, ("vc-webhook-manager",)),
    _plugin(
        "gpushare",
        GPUSHARE,
        "k8s-gpushare-plugin",
        "gpushare-device-plugin",
        flags=("memory-unit",),
    ),
    ComponentRow(
        "gpushare",
        _ROLE.SCHEDULER,
        ("k8s-gpushare-schd-extender", "gpushare-scheduler-extender"),
        serves=(GPUSHARE,),
    ),
    _plugin("gpu-manager", GAIA, "gpu-manager"),
    ComponentRow("gpu-manager", _ROLE.SCHEDULER, ("gpu-admission",), serves=(GAIA,)),
    ComponentRow(
        "KubeShare",
        _ROLE.CONTROLLER,
        ("kubeshare-device-manager",),
    ),
    ComponentRow("KubeShare", _ROLE.SCHEDULER, ("kubeshare-scheduler",), serves=(KUBESHARE,)),
    ComponentRow(
        "KubeShare",
        _ROLE.NODE_COMPONENT,
        ("kubeshare-config-client", "kubeshare-config", "kubeshare-gemini-scheduler"),
    ),
    _plugin(
        "NVIDIA",
        NVIDIA,
        "k8s-device-plugin",
        programs=("nvidia-device-plugin", "nvidia-device-plugin-ctr"),
    ),
    _plugin(GKE, NVIDIA, "nvidia-gpu-device-plugin"),
    ComponentRow("NVIDIA", _ROLE.OPERATOR, ("gpu-operator",)),
    ComponentRow("NVIDIA", _ROLE.DRA_DRIVER, ("k8s-dra-driver-gpu", "dra-driver-nvidia-gpu")),
    ComponentRow("NVIDIA", _ROLE.EXPORTER, ("dcgm-exporter",)),
    _of_kai(_ROLE.SCHEDULER, "scheduler", flags=(QUEUE_LABEL_FLAG,)),
    _of_kai(_ROLE.BINDER, "binder", flags=(PLUGINS_FLAG,)),
    _of_kai(_ROLE.WEBHOOK, "admission", flags=(SHARING_FLAG, LIMITS_FLAG)),
    _of_kai(_ROLE.POD_GROUPER, "podgrouper", flags=(QUEUE_LABEL_FLAG,)),
    _of_kai(_ROLE.CONTROLLER, "podgroupcontroller", "queuecontroller", "nodescaleadjuster"),
    _of_kai(_ROLE.OPERATOR, "operator"),
    _of_isolator(_ROLE.WEBHOOK, "webhook"),
    _of_isolator(_ROLE.LIBRARY, "libsync"),
    _of_isolator(_ROLE.EXPORTER, "monitor"),
    ComponentRow("", _ROLE.KUBE_SCHEDULER, ("kube-scheduler",)),
    ComponentRow("Kueue", _ROLE.QUEUE_MANAGER, ("kueue",)),
    _ours(
        _ROLE.DEVICE_PLUGIN,
        "device-plugin",
        flags=(
            "scheme",
            "cdi",
            "no-cdi",
            "cdi.spec-dir",
            "volcano.dialect",
            NODE_TOKEN_FLAG,
            *_UNITS,
        ),
    ),
    _ours(
        _ROLE.SCHEDULER,
        "scheduler",
        serves=(VOLCANOS, HAMIS, GPUSHARE, GAIA),
        flags=("single", "original-plugin", "lease-namespace", *_UNITS),
    ),
    _ours(_ROLE.EXPORTER, "exporter", flags=("collector.api", *_UNITS)),
    _ours(
        _ROLE.NODE_RECONCILER,
        "reconcile",
        "run",
        "--scope=node",
        flags=(NODE_TOKEN_FLAG, *_UNITS),
    ),
    _ours(_ROLE.RECONCILER, "reconcile", "run", flags=("state-namespace", *_UNITS)),
    _ours(
        _ROLE.CONTROLLER,
        "kubeshare",
        "controller",
        serves=(KUBESHARE,),
        flags=("lease-namespace",),
    ),
    _ours(_ROLE.NODE_COMPONENT, "kubeshare", "node", flags=(NODE_TOKEN_FLAG,)),
    _ours(_ROLE.FEEDBACK, "feedback"),
    _ours(_ROLE.TOKEN_DAEMON, "tokens"),
    _ours(_ROLE.FLEET_PAGE, "fleet"),
)
"""The components; of several rows that fit a container the first one counts."""


class InstalledComponent(msgspec.Struct, frozen=True):
    """A container of a workload that is a known component.

    Attributes:
        row: the component.
        workload: where it is.
        version: the tag of its image, or the beginning of its digest.
        flags: the flags of the row that its command line has; "" for one without a value.
        serves: those of the row; of our device plugin those of its flags.
        resource: the extended resource that a device plugin registers.
        names: the names of resources that its flags set, by the system's row and the role.
    """

    row: ComponentRow
    workload: Workload
    version: str
    flags: Mapping[str, str] = {}
    serves: tuple[str, ...] = ()
    resource: str = ""
    names: Mapping[tuple[str, str], str] = {}

    @property
    def is_ours(self) -> bool:
        """Whether it is a component of vgpu."""
        return self.row.system == _OURS

    @property
    def text(self) -> str:
        """The component, its place and its version, for people."""
        return f"{self.row.title} {self.version} ({self.workload.title})"


def components(workloads: Iterable[Workload]) -> tuple[InstalledComponent, ...]:
    """The known components, in the order of the table and of the names of their workloads."""
    installed = [
        component
        for workload in sorted(workloads, key=lambda each: each.title)
        for container in workload.containers
        if (component := _component(workload, container)) is not None
    ]
    order = {id(row): number for number, row in enumerate(COMPONENTS)}
    return tuple(sorted(installed, key=lambda each: order[id(each.row)]))


def _component(workload: Workload, container: WorkloadContainer) -> InstalledComponent | None:
    image, version = image_parts(container.image)
    for row in COMPONENTS:
        if image in row.images and _fits(row, container) and _is_at(row, workload, container):
            most = _LONGEST_JSON if PLUGINS_FLAG in row.flags else _LONGEST_VERSION
            flags = dict(_flags(container.words, row.flags, most))
            names = dict(_names(container.words)) if row.system == _OURS else {}
            if flags.get(RESOURCE_NAME_FLAG):
                names[HAMIS, _ROLE_OF[HAMIS]] = flags[RESOURCE_NAME_FLAG]
            serves, resource = row.serves, ""
            if row.role is ComponentRole.DEVICE_PLUGIN:
                serves = (_served(flags),) if row.system == _OURS else row.serves
                own = names.get((serves[0], _ROLE_OF.get(serves[0], "")))
                resource = own or resource_of(serves[0])
            return InstalledComponent(row, workload, version, flags, serves, resource, names)
    return None


def _fits(row: ComponentRow, container: WorkloadContainer) -> bool:
    if row.words:
        first, *rest = row.words
        words = [word for word in container.words if _program(word) != VGPU]
        return words[:1] == [first] and all(word in words for word in rest)
    if not row.programs:
        return True
    program = _program(container.words[0]) if container.words else ""
    return program in row.programs or container.name in row.programs


def _is_at(row: ComponentRow, workload: Workload, container: WorkloadContainer) -> bool:
    """Whether the image's folder or the namespace is one of the row's places, if it has some."""
    _, _, folder = container.image.rpartition("/")[0].rpartition("/")
    return not row.places or folder in row.places or workload.namespace in row.places


def _program(path: str) -> str:
    return path.rpartition("/")[2]


def _served(flags: Mapping[str, str]) -> str:
    scheme = flags.get("scheme", "")
    return HAMIS if scheme == VOLCANOS and flags.get("volcano.dialect") == HAMIS else scheme


def _flags(
    words: Sequence[str], wanted: Sequence[str], most: int = _LONGEST_VERSION
) -> Iterator[tuple[str, str]]:
    """The wanted flags and their values, as Go and click write them: one dash or two."""
    for word, following in pairwise((*words, "-")):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if name in wanted:
            given = value if equals else "" if following.startswith("-") else following
            yield name, given[:most]


def _names(words: Sequence[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """The names that flags such as ``--hami.resource=count=nvidia.com/vgpu`` set."""
    systems = {f"{system}.resource": system for system in ORIGINAL_NAMES}
    for flag, given in _flags(words, tuple(systems), most=_LONGEST_NAME):
        typed, _, name = given.partition("=")
        role = role_of(typed)
        if role in roles(systems[flag]) and name:
            yield (systems[flag], role), name


def image_parts(image: str) -> tuple[str, str]:
    """The last part of an image's name, and its tag or the beginning of its digest."""
    rest, at, digest = image.partition("@")
    _, _, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    version = tag or (digest.removeprefix("sha256:")[:12] if at else "latest")
    return name, version[:_LONGEST_VERSION]
