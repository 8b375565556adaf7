"""The values of a diagnosis: checks, severities, reasons and findings."""

from typing import Final, Self

import msgspec

from vgpu.kube.node_key import NODE_KEY, OWN_NODE_VALUE
from vgpu.model.reasons import Explained


class Severity(Explained):
    """How bad a finding is, worst first."""

    ERROR = "error", "pods fail or get wrong GPUs, or will"
    WARNING = "warning", "failures are possible, or a check could not be made"
    INFO = "info", "worth knowing; support asks for it"
    OK = "ok", "a check found nothing wrong"


class DoctorCheck(Explained):
    """A check, in the order of the report."""

    SYSTEMS = "systems", "sharing systems, their versions and whether they run"
    SETTINGS = "settings", "settings that contradict each other"
    UNITS = "units", "units of memory, configured and advertised"
    SCHEDULER = "scheduler", "configurations of kube-scheduler and Volcano"
    RUNTIME = "runtime", "container runtimes and CDI"
    KUBELET = "kubelet", "versions of kubelets"
    CLOCKS = "clocks", "clocks of the API server, of this machine and of the nodes"
    RIGHTS = "rights", "rights of the components of vgpu, and the policy that limits them"
    NODE = "node", "this node: driver, what the exporter reads, sockets, CDI, monitors"


class DoctorReason(Explained):
    """What a finding is, with its severity and what to do."""

    severity: Severity
    advice: str

    def __new__(cls, value: str, severity: Severity, explanation: str, advice: str = "") -> Self:
        """Create the member from its code, its severity and its texts."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        member.severity = severity
        member.advice = advice
        return member

    # any check
    PASSED = "passed", Severity.OK, "nothing wrong was found"
    CHECK_FAILED = (
        "check_failed",
        Severity.WARNING,
        "a check ended with an error of vgpu itself; the other checks are not affected",
        "report it, with this line; vgpu doctor -o json has the same",
    )
    NOT_READ = (
        "not_read",
        Severity.WARNING,
        "a part could not be read, so its checks are incomplete",
        "grant the right that is named, or run the command as another user",
    )
    NOTHING_READ = (
        "nothing_read",
        Severity.ERROR,
        "no list of the cluster could be read, so nothing was checked",
        "repair what each finding not_read names",
    )
    MALFORMED = (
        "malformed",
        Severity.WARNING,
        "objects could not be decoded and are missing here",
        "vgpu reconcile plan reports them with the reason",
    )

    # systems
    INSTALLED = "installed", Severity.INFO, "a component is installed"
    CUSTOM_KINDS = (
        "custom_kinds",
        Severity.INFO,
        "the API server has custom resources of a sharing system",
    )
    MISSING_KIND = (
        "missing_kind",
        Severity.ERROR,
        "a component needs a custom resource that the API server does not have",
        "apply the CustomResourceDefinitions of its release",
    )
    NODES = "nodes", Severity.INFO, "nodes have GPUs of a sharing system"
    NOTHING_INSTALLED = (
        "nothing_installed",
        Severity.WARNING,
        "no component of a known sharing system and no node with its GPUs was found",
        "check the context of the kubeconfig; the page doctor lists what is recognised",
    )
    NONE_READY = (
        "none_ready",
        Severity.ERROR,
        "no pod of a component is ready",
        "kubectl describe the workload, and look at the logs of its pods",
    )
    PARTLY_READY = (
        "partly_ready",
        Severity.WARNING,
        "some pods of a component are not ready",
        "look at the pods that are not ready, and at their nodes",
    )
    NO_DEVICE_PLUGIN = (
        "no_device_plugin",
        Severity.WARNING,
        "nodes advertise GPUs of a sharing system, and no device plugin for it was found",
        "without a plugin these nodes allocate nothing after the next restart of their kubelet",
    )
    NO_SCHEDULER = (
        "no_scheduler",
        Severity.WARNING,
        "nodes advertise GPUs of a sharing system, and no scheduler for its pods was found",
        "pods that another scheduler binds get no GPU; a StatefulSet or renamed image is not seen",
    )
    NOTHING_ALLOCATABLE = (
        "nothing_allocatable",
        Severity.ERROR,
        "nodes have GPUs of a sharing system, and none of them is allocatable",
        "the device plugin of these nodes is down, or all GPUs are unhealthy: look at its log",
    )
    UNREADABLE_REGISTER = (
        "unreadable_register",
        Severity.ERROR,
        "what the device plugin of a node has registered cannot be read: the node takes no pod",
        "look at the version and log of the node's device plugin, which writes this annotation",
    )
    SEVERAL_VERSIONS = (
        "several_versions",
        Severity.WARNING,
        "components of one sharing system have different versions",
        "bring them to one version, unless an upgrade is under way",
    )

    # settings
    SEVERAL_SYSTEMS = (
        "several_systems",
        Severity.WARNING,
        "nodes have GPUs of several sharing systems, which do not know of each other",
        "use one sharing system per node, chosen by node labels",
    )
    SEVERAL_BINDERS = (
        "several_binders",
        Severity.WARNING,
        "several schedulers place pods of one sharing system; none knows what the other reserves",
        "keep one of them, or separate their nodes",
    )
    SEVERAL_PLUGINS = (
        "several_plugins",
        Severity.ERROR,
        "several device plugins of one resource are meant for the same nodes",
        "let their node selectors exclude each other",
    )
    TWO_FEEDBACKS = (
        "two_feedbacks",
        Severity.ERROR,
        "HAMi's monitor and vgpu feedback write the same regions on the same nodes",
        "stop one of them on these nodes",
    )
    NO_NODE_LOCK = (
        "no_node_lock",
        Severity.ERROR,
        "the original device plugin finds its pod by a lock, which vgpu scheduler does not write",
        "run vgpu scheduler with --original-plugin, or our device plugin",
    )
    NEEDLESS_LOCK = (
        "needless_lock",
        Severity.INFO,
        "vgpu scheduler locks nodes for original device plugins, and none was found",
        "without --original-plugin several pods of a node are bound at the same time",
    )
    SINGLE_WITH_REPLICAS = (
        "single_with_replicas",
        Severity.ERROR,
        "several replicas run with --single, which is for one",
        "drop --single, or run one replica",
    )
    RESOURCE_RENAMED = (
        "resource_renamed",
        Severity.ERROR,
        "HAMi's scheduler counts another resource than its nodes advertise",
        "set the same resource-name for the scheduler and the device plugin",
    )
    NAMES_DIFFER = (
        "names_differ",
        Severity.ERROR,
        "a resource of a sharing system has several names",
        "set one name in scheduler, device plugin and the flags of vgpu, such as --hami.resource",
    )
    WEBHOOK_BLOCKS_PODS = (
        "webhook_blocks_pods",
        Severity.ERROR,
        "the component of a webhook with failurePolicy Fail has no ready pod: no pod is created",
        "repair the component, or delete the webhook configuration until it runs",
    )

    KUEUE_AWAY = (
        "kueue_away",
        Severity.ERROR,
        "no pod of Kueue is ready, and its webhooks refuse new objects of all namespaces",
        "repair Kueue, or delete both of its webhook configurations; apply them again once it runs",
    )
    KUEUE_COUNTS_ONCE = (
        "not_transformed",
        Severity.WARNING,
        "Kueue counts the memory or cores of HAMi once, whatever the number of GPUs",
        "add the lines to resources.transformations of Kueue, and quotas of their outputs",
    )
    KAI_SHARING = (
        "kai_sharing",
        Severity.INFO,
        "KAI Scheduler lets pods request parts of GPUs",
    )
    KAI_SHARING_OFF = (
        "kai_sharing_off",
        Severity.WARNING,
        "KAI Scheduler refuses pods that request a part of a GPU: GPU sharing is off",
        "set global.gpuSharing: true in its chart, or admission.gpuSharing in its Config",
    )
    KAI_NOT_LIMITED = (
        "kai_not_limited",
        Severity.INFO,
        "nothing limits the shares of KAI Scheduler: a container can use the whole GPU",
        "install KAI-resource-isolator and enable the binder's plugin hamicore if it should not",
    )
    KAI_LIMIT_MISSING = (
        "kai_limit_missing",
        Severity.ERROR,
        "HAMi-core is loaded into containers of KAI Scheduler, and gets no limit",
        "enable hamicore below binder.plugins in KAI's Config; new pods then have their limit",
    )
    KAI_LIMIT_UNUSED = (
        "kai_limit_unused",
        Severity.WARNING,
        "KAI Scheduler writes memory limits, and nothing that enforces them was found",
        "install KAI-resource-isolator, or load HAMi-core into the containers in another way",
    )
    KAI_LIMITS_DIFFER = (
        "kai_limits_differ",
        Severity.ERROR,
        "KAI Scheduler's binder and its webhook do not both have memory limits on",
        "let its operator start both again; the Config's binder.plugins.hamicore sets both",
    )
    KAI_MEMORY_LABEL = (
        "kai_memory_label",
        Severity.WARNING,
        "nodes with GPUs have no label by which KAI Scheduler learns the memory of their GPUs",
        "look at GPU feature discovery; until then pods with gpu-memory wait, shares have no limit",
    )
    KAI_QUEUE_LABEL = (
        "kai_queue_label",
        Severity.INFO,
        "the label by which pods of KAI Scheduler name their queue",
    )
    KAI_QUEUE_LABELS = (
        "kai_queue_labels",
        Severity.ERROR,
        "components of KAI Scheduler read the queue of a pod from different labels",
        "give them one --queue-label-key",
    )
    KAI_QUEUE_LABEL_UNREAD = (
        "kai_queue_label_unread",
        Severity.WARNING,
        "pods name their queue by a label that KAI Scheduler does not read",
        "use the label that it reads: without it a pod is in the queue default-queue",
    )

    # units
    UNITS_DIFFER = (
        "units_differ",
        Severity.ERROR,
        "components have different units of memory, so sizes differ by the same factor",
        "give each of them the unit of the device plugin",
    )
    UNIT_OF_PLUGIN = (
        "unit_of_plugin",
        Severity.INFO,
        "the unit of memory that a device plugin runs with, by its command line",
    )
    UNIT_UNCONFIRMED = (
        "unit_unconfirmed",
        Severity.WARNING,
        "nodes advertise other amounts than the unit allows",
        "pass the unit of the device plugin to this command and to the components of vgpu",
    )
    UNIT_ASSUMED = (
        "unit_assumed",
        Severity.INFO,
        "a unit of memory was chosen by the sizes of the GPUs",
        "pass the unit of the device plugin to be sure",
    )

    # scheduler
    CONFIGURED = "configured", Severity.INFO, "a scheduler's configuration was checked"
    CONFIG_UNKNOWN = (
        "config_unknown",
        Severity.INFO,
        "an extender is installed, and the configuration of kube-scheduler was not found",
        "kubeadm keeps it in a file of the control plane: pass a copy with --scheduler-config",
    )
    CONFIG_UNREADABLE = (
        "config_unreadable",
        Severity.WARNING,
        "a scheduler's configuration cannot be decoded",
        "kube-scheduler would refuse it, too",
    )
    VGPU_NOT_ENABLED = (
        "vgpu_not_enabled",
        Severity.ERROR,
        "Volcano's scheduler places no vGPUs without its plugin deviceshare with VGPUEnable",
        "add deviceshare with deviceshare.VGPUEnable: true to volcano-scheduler.conf",
    )
    DEVICESHARE_CONFLICT = (
        "deviceshare_conflict",
        Severity.ERROR,
        "Volcano's scheduler ends at its start: its plugin deviceshare allows one way of sharing",
        "leave one of VGPUEnable, GPUSharingEnable and GPUNumberEnable true",
    )

    # runtime
    RUNTIMES = "runtimes", Severity.INFO, "container runtimes of the nodes with GPUs"
    NO_CDI = (
        "no_cdi",
        Severity.ERROR,
        "our device plugin answers with CDI devices, which the container runtime cannot inject",
        "upgrade the runtime, or run the device plugin with --no-cdi on these nodes",
    )
    CDI_UNKNOWN = (
        "cdi_unknown",
        Severity.INFO,
        "the container runtime injects CDI devices only if its configuration enables them",
        "run vgpu doctor node there: it reads the configuration",
    )
    RUNTIME_UNKNOWN = (
        "runtime_unknown",
        Severity.WARNING,
        "it is not known whether the container runtime injects CDI devices",
        "try one pod first, or run the device plugin with --no-cdi",
    )

    # kubelet
    KUBELETS = "kubelets", Severity.INFO, "versions of the kubelets of nodes with GPUs"
    KUBELET_WITHOUT_CDI = (
        "kubelet_without_cdi",
        Severity.ERROR,
        "our device plugin answers with CDI devices, which this kubelet does not pass on",
        "upgrade the kubelet to 1.29 or newer, or run the device plugin with --no-cdi",
    )
    KUBELET_SKEW = (
        "kubelet_skew",
        Severity.WARNING,
        "Kubernetes does not support this kubelet with this API server",
        "a kubelet may be three minor versions older than the API server, and none newer",
    )
    OLD_DRA = (
        "old_dra",
        Severity.INFO,
        "resource.k8s.io is not served as v1, which is there from Kubernetes 1.34 on",
        "ResourceClaims of older versions are not read",
    )

    # clocks
    CLOCK_OF_THIS_MACHINE = (
        "clock_of_this_machine",
        Severity.WARNING,
        "the clocks of this machine and of the API server differ",
        "run an NTP client on both: ages and deadlines would be wrong",
    )
    CLOCK_OF_NODE = (
        "clock_of_node",
        Severity.WARNING,
        "the clock of a node differs from that of the API server",
        "run an NTP client there: reservations would expire at wrong times",
    )
    NO_HEARTBEAT = (
        "no_heartbeat",
        Severity.WARNING,
        "a node that is Ready has not renewed its Lease for a while",
        "look at its kubelet; if this lasts, the node becomes NotReady",
    )

    # rights
    MISSING_RIGHT = (
        "missing_right",
        Severity.ERROR,
        "a component of vgpu lacks a right that it needs",
        "apply the manifests or the chart of its version again",
    )
    MISSING_OPTIONAL_RIGHT = (
        "missing_optional_right",
        Severity.WARNING,
        "a component of vgpu lacks a right that a part of its work needs",
        "grant it, or switch that part off",
    )

    NODE_KEY_ABSENT = (
        "node_key_absent",
        Severity.ERROR,
        "a component requires a token that names its node, and no token of this API server does",
        f"upgrade Kubernetes, or set {OWN_NODE_VALUE}: false in the chart",
    )
    NODE_TOKEN_REQUIRED = (
        "node_token_required",
        Severity.WARNING,
        "pods are not ready, and they are ready only if their token names their node",
        f"if their log names {NODE_KEY}, set {OWN_NODE_VALUE}: false in the chart",
    )
    NODE_TOKEN_UNCHECKED = (
        "node_token_unchecked",
        Severity.INFO,
        "the admission policy refuses tokens that do not name their node, which is not checked",
        f"add --require-node-token, or set {OWN_NODE_VALUE}: false in the chart",
    )
    ACCOUNT_NOT_LIMITED = (
        "account_not_limited",
        Severity.WARNING,
        "no admission policy limits what an account of vgpu writes in the status of all pods",
        "set accountPolicy.enabled: true in the chart, or apply account-policy.yaml",
    )

    # this node
    DRIVER = "driver", Severity.INFO, "the NVIDIA driver of this node"
    NO_DRIVER = (
        "no_driver",
        Severity.ERROR,
        "the NVIDIA driver of this node does not answer",
        "run nvidia-smi; in a container check runtimeClassName and the mounts",
    )
    GPU_UNREADABLE = (
        "gpu_unreadable",
        Severity.ERROR,
        "the driver lists a GPU that it cannot read",
        "look for XIDs in the kernel's log; the GPU may need a reset",
    )
    SOURCE_FAILED = (
        "source_failed",
        Severity.WARNING,
        "something that the exporter reads on this node cannot be read",
        "run it as root, or compare with the table of privileges on the page exporter",
    )
    INPUT_REFUSED = (
        "input_refused",
        Severity.INFO,
        "files were refused, and cost nothing but themselves",
        "the log of the exporter names them",
    )
    SOCKET_ABSENT = (
        "socket_absent",
        Severity.WARNING,
        "a socket of the kubelet is not there",
        "check that the kubelet runs here, and in a container that its folder is mounted",
    )
    RUNTIME_CONFIG = "runtime_config", Severity.INFO, "CDI in the configuration of containerd"
    CONTAINERD_UNKNOWN = (
        "containerd_unknown",
        Severity.INFO,
        "the configuration of containerd was not read, so it is not known whether CDI is enabled",
        "pass its path with --containerd.config, if containerd runs here",
    )
    CDI_OFF = (
        "cdi_off",
        Severity.WARNING,
        "containerd injects no CDI devices on this node, which our device plugin answers with",
        "set enable_cdi = true in its CRI plugin and restart it, or run the plugin with --no-cdi",
    )
    CDI_FOLDER_UNKNOWN = (
        "cdi_folder_unknown",
        Severity.WARNING,
        "containerd does not read the folder of our CDI specs, /var/run/cdi",
        "add it to cdi_spec_dirs, or set --cdi.spec-dir to one of these folders",
    )
    FEEDBACK_MONITOR = (
        "feedback_monitor",
        Severity.INFO,
        "HAMi's monitor runs on this node and writes the regions",
        "run no vgpu feedback beside it",
    )
    MONITOR_UNKNOWN = (
        "monitor_unknown",
        Severity.INFO,
        "it is not known whether HAMi's monitor runs on this node",
        "run it on the host, or with hostPID",
    )


class DoctorFinding(msgspec.Struct, frozen=True):
    """A result of a check.

    Attributes:
        check: the check.
        severity: how bad it is.
        reason: a :class:`DoctorReason`, or a trap of :mod:`scheduler.check_config.traps`.
        about: the object, such as ``DaemonSet kube-system/hami-device-plugin``; "" for the cluster.
        evidence: sentences.
        advice: what to do; "" if nothing.
    """

    check: DoctorCheck
    severity: Severity
    reason: Explained
    about: str = ""
    evidence: tuple[str, ...] = ()
    advice: str = ""


def finding(
    check: DoctorCheck, reason: DoctorReason, about: str = "", *evidence: str
) -> DoctorFinding:
    """A finding with the severity and the advice of its reason."""
    return DoctorFinding(check, reason.severity, reason, about, evidence, reason.advice)


ADD_TO_DUMP: Final = "add it to the dump, if the cluster has it: kubectl get … -A -o json"
"""What to do about a part that is not in a dump, which is no missing right."""


class Unread(msgspec.Struct, frozen=True):
    """A part that could not be read.

    Attributes:
        checks: the checks that are incomplete.
        what: the part, such as "DaemonSets".
        why: the reason for people.
        rule: the line of a ClusterRole that grants the missing right; "" if none is missing.
    """

    checks: tuple[DoctorCheck, ...]
    what: str
    why: str
    rule: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """All findings, worst first, of objects that were read at ``as_of`` (unix seconds)."""

    as_of: float
    findings: tuple[DoctorFinding, ...]

    def count(self, severity: Severity) -> int:
        """Number of findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)


def diagnosis(as_of: float, findings: tuple[DoctorFinding, ...]) -> Diagnosis:
    """The findings, worst first, then in the order of the checks."""
    severities, checks = list(Severity), list(DoctorCheck)
    return Diagnosis(
        as_of,
        tuple(
            sorted(
                findings,
                key=lambda each: (severities.index(each.severity), checks.index(each.check)),
            )
        ),
    )
