"""Every reason code of the reconciler, once, for code, metrics, output and runbooks.

A value is a label of a metric and a field of the JSON output; its explanation stands in the table
and in the runbooks.
"""

from vgpu.ledger.conflict_kinds import ConflictKind
from vgpu.model.reasons import Explained
from vgpu.schemes.row import DefectCause


class Rule(Explained):
    """The rules; where several find the same object, the first that may act does."""

    REFUSED = "refused", "the kubelet rejected the pod at admission, and the pod will never run"
    TERMINATED = "terminated", "a node shutdown ended the pod, and the pod will not run again"
    OVER_PROMISED = "over_promised", "the scheduler reserved more of a GPU than the GPU has"
    PRESTART_FAILED = "prestart_failed", "the device plugin refuses to start the pod's containers"
    NO_GPU_MATCHED = (
        "no_gpu_matched",
        "the gpushare device plugin found no pod for the kubelet's request",
    )
    ASSUMED_EXPIRED = (
        "assumed_expired",
        "the scheduler reserved a device and bound the pod, but the device was never allocated",
    )
    ASSUMED_UNBOUND = (
        "assumed_unbound",
        "the scheduler reserved a device, but the pod was never bound to the node",
    )
    STALE_LOCK = "stale_lock", "a node lock that its owner no longer needs"
    STALE_HANDSHAKE = (
        "stale_handshake",
        "the scheduler considers the node's device plugin dead, but the plugin is alive",
    )
    LEFTOVER_CLAIM = (
        "leftover_claim",
        "the pod was served or has ended, but its claim still asks for devices",
    )
    GPU_DRIFT = (
        "card_drift",
        "the annotation names another GPU than the one that the container has",
    )
    RECOVER = "recover", "the container runs on its device, but no allocation record shows it"
    DOUBLE_BOOKED = "double_booked", "containers hold more of a device than the device has"
    RUNNING_WITHOUT_DEVICE = (
        "running_without_device",
        "the container asks for a device and runs without one",
    )
    LOST_DEVICE = "lost_device", "the container's device is missing or unhealthy"
    UNOWNED_PROCESS = (
        "unowned_process",
        "a process uses a device that was not allocated to its container",
    )
    OVER_LIMIT = "over_limit", "the container uses more memory of a device than was allocated to it"
    ORPHAN_SHIM_DIR = (
        "orphan_shim_dir",
        "a folder of the sharing library whose pod no longer exists",
    )
    KUBESHARE = "kubeshare", "a holder pod or SharePod that KubeShare no longer tracks"
    STUCK_TERMINATING = (
        "stuck_terminating",
        "the pod is being deleted, does not end, and keeps its share of a GPU",
    )
    HELD_FOR_NOTHING = (
        "held_for_nothing",
        "the container cannot run, and its share of a GPU is of no use to any pod",
    )
    IDLE_HOLDER = (
        "idle_holder",
        "the container holds a share of a GPU, and has launched no kernel for a long time",
    )
    OVER_QUOTA = (
        "over_quota",
        "the pods of a namespace hold more of shared GPUs than the quota of the namespace",
    )
    QUOTA_MARK = (
        "quota_mark",
        "the mark of a Namespace does not show whether its pods hold more than its quota",
    )
    QUOTA_DRIFT = (
        "quota_drift",
        "Kubernetes counts another amount for a ResourceQuota than pods request and hold",
    )
    RESOURCE_CLAIM = (
        "resource_claim",
        "a ResourceClaim keeps devices without a pod, or a node has other data about it",
    )
    KAI = "kai", "a GPU group of KAI Scheduler whose pods and reservation pod do not fit together"
    MALFORMED_OBJECT = "malformed_object", "an object of the API server that cannot be decoded"


def _known(defect: DefectCause) -> tuple[str, str]:
    """The code and the text of a scheduler's known defect."""
    return defect.value, defect.explanation


def _of_conflict(kind: ConflictKind) -> tuple[str, str]:
    """The code and the text of a conflict."""
    return kind.value, kind.explanation


class Cause(Explained):
    """Why a rule reports an object: the reason code of a finding."""

    # refused
    UNEXPECTED_ADMISSION_ERROR = (
        "unexpected_admission_error",
        "admission failed on the node, mostly in Allocate",
    )
    OUT_OF_RESOURCE = "out_of_resource", "the kubelet had too few devices of the resource"
    TOPOLOGY_AFFINITY_ERROR = (
        "topology_affinity_error",
        "the kubelet's topology manager rejected the pod",
    )
    PRESTART_CHECK_ERROR = (
        "prestart_check_error",
        "the device plugin marked the pod as failed after its check",
    )
    NODE_AFFINITY = "node_affinity", "the node's labels no longer matched the pod"
    NODE_SHUTDOWN = "node_shutdown", "the node was being shut down"
    OTHER = "other", "another reason of the kubelet, quoted in the evidence; no container ever ran"
    # terminated
    NODE_WENT_DOWN = "node_went_down", "the kubelet ended the pod when the node shut down"
    # over_promised
    FREE_BELOW_ZERO = _known(DefectCause.FREE_BELOW_ZERO)
    INIT_CONTAINERS_MISCOUNTED = _known(DefectCause.INIT_CONTAINERS_MISCOUNTED)
    SAME_GPU_TWICE = _known(DefectCause.SAME_GPU_TWICE)
    CACHE_BEHIND = _known(DefectCause.CACHE_BEHIND)
    SUM_EXCEEDED = "sum_exceeded", "the reservations add up to more than the GPU has"
    # prestart_failed
    PRESTART_CHECK_FAILED = (
        "prestart_check_failed",
        "the device plugin refused the container in PreStartContainer",
    )
    CROSSED = "crossed", "without CDI, the kubelet holds the answer of another pod for this pod"
    ALLOCATE_CHECK_FAILED = (
        "allocate_check_failed",
        "the device plugin refused the container in Allocate",
    )
    # no_gpu_matched
    NO_GPU_TO_RUN = (
        "no_gpu_to_run",
        "the container's environment holds the error value no-gpu-has-…-to-run",
    )
    # assumed_expired, assumed_unbound
    NEVER_ASSIGNED = "never_assigned", "Allocate was never called for the pod"
    WITHOUT_CLAIM = (
        "without_claim",
        "no annotation names a device for the pod, and what it requests is kept free",
    )
    NEVER_BOUND = "never_bound", "binding the pod failed and its claim stayed"
    # stale_lock
    OWNER_GONE = "owner_gone", "the lock's owner does not exist"
    OWNER_ENDED = "owner_ended", "the lock's owner has ended"
    OWNER_SERVED = "owner_served", "the lock's owner has its devices"
    NOBODY_WAITS = (
        "nobody_waits",
        "the lock names no owner, and no pod on the node waits for Allocate",
    )
    LOCK_EXPIRED = (
        "lock_expired",
        "the lock is older than its scheduler's time-out, but a pod may still need it",
    )
    # stale_handshake
    PLUGIN_LIVES = "plugin_lives", "the node advertises the plugin's resources"
    # leftover_claim
    ENDED_WITH_CLAIM = "ended_with_claim", "a pod that has ended is still a candidate for Allocate"
    SERVED_WITH_CLAIM = "served_with_claim", "a pod that was served is still a candidate"
    # card_drift
    GPU_DIFFERS = "card_differs", "more trusted sources than the annotation name another device"
    # recover
    RUNS_UNASSIGNED = (
        "runs_unassigned",
        "the container runs, but its claim was never marked as assigned",
    )
    RUNS_UNCLAIMED = (
        "runs_unclaimed",
        "the container runs on a known GPU, but the pod's annotations name none",
    )
    # double_booked
    SAME_SLICE = "same_slice", "two pods hold the same slice"
    OVERCOMMITTED = "overcommitted", "the shares add up to more than the device has"
    # running_without_device
    NO_GRANT = "no_grant", "the kubelet has allocated no device to the container"
    NO_CLAIM = "no_claim", "no scheduler has chosen a device for the pod"
    CLAIM_WITHOUT_REQUEST = (
        "claim_without_request",
        "the pod claims GPUs and requests none, so that nothing is counted for it",
    )
    # lost_device
    DEVICE_MISSING = "device_missing", "the device is missing from the node, or no longer answers"
    DEVICE_UNHEALTHY = (
        "device_unhealthy",
        "the device plugin or the driver reports the device as unhealthy",
    )
    # unowned_process
    PROCESS_WITHOUT_ALLOCATION = (
        "process_without_allocation",
        "nothing of the device was allocated to the process's container",
    )
    # over_limit
    MORE_THAN_ALLOCATED = (
        "more_than_given",
        "the container's processes use more of the device's memory than its share",
    )
    MORE_THAN_CONSUMED = (
        "more_than_consumed",
        "the containers of a ResourceClaim use more memory of a device together than it consumes",
    )
    # orphan_shim_dir
    POD_GONE = "pod_gone", "no pod with that UID is on the node, and no process maps the file"
    # kubeshare
    ORPHANED_HOLDER = (
        "orphaned_holder",
        "the holder pod keeps a GPU for a virtual GPU without users",
    )
    FLOAT_SUM = (
        "float_sum",
        "KubeShare refused the SharePod because its decimals do not add up to 1 in floating point",
    )
    VANISHED_GPUID = "vanished_gpuid", "the virtual GPU no longer has a holder pod"
    COMPLETED_FOR_EVER = "completed_for_ever", "the pod completes and is recreated, for ever"
    SPLIT_VIRTUAL_GPU = (
        "split_virtual_gpu",
        "SharePods of one virtual GPU use different GPUs, or another GPU than is held for them",
    )
    # stuck_terminating
    CONTAINERS_REMAIN = (
        "containers_remain",
        "the kubelet has not ended the pod's containers, or not reported their end",
    )
    NODE_AWAY = (
        "node_away",
        "the pod's node is not ready or does not exist, so nothing confirms the end of the pod",
    )
    # held_for_nothing
    CANNOT_START = (
        "cannot_start",
        "the kubelet cannot start the container: its image, its device or its configuration",
    )
    CRASH_LOOP = "crash_loop", "the container ends soon after every start"
    # idle_holder
    NO_KERNEL = "no_kernel", "the sharing library has seen no kernel of the container"
    NO_PROCESS = "no_process", "no process of the container's pod uses the device now"
    # over_quota
    QUOTA_EXCEEDED = (
        "quota_exceeded",
        "without this pod, and the others that are named, the namespace is within its quota",
    )
    # quota_mark
    MARK_MISSING = (
        "mark_missing",
        "the pods of the namespace exceed its quota, and its mark does not name these limits",
    )
    MARK_LEFT = ("mark_left", "the namespace is within its quota, and still has the mark")
    # quota_drift
    TERMINATING_HOLDS = (
        "terminating_holds",
        "Kubernetes no longer counts a pod whose deletion is due, and the pod keeps its share",
    )
    ENDED_COUNTED = (
        "ended_counted",
        "Kubernetes still counts pods that have ended, such as pods that the kubelet refused",
    )
    SHARE_PODS_UNCOUNTED = (
        "share_pods_uncounted",
        "SharePods hold shares and request no resource that a ResourceQuota could count",
    )
    COUNT_DIFFERS = (
        "count_differs",
        "status.used of the ResourceQuota is not what its pods request",
    )
    # kai
    GROUP_UNRESERVED = _of_conflict(ConflictKind.GROUP_UNRESERVED)
    GROUP_SPLIT = _of_conflict(ConflictKind.GROUP_SPLIT)
    GPU_IN_GROUPS = _of_conflict(ConflictKind.GPU_IN_GROUPS)
    RESERVATION_ENDED = _of_conflict(ConflictKind.RESERVATION_ENDED)
    RESERVATION_UNUSED = _of_conflict(ConflictKind.RESERVATION_UNUSED)
    RESERVATION_MOVED = _of_conflict(ConflictKind.RESERVATION_MOVED)
    PORTION_ZERO = _of_conflict(ConflictKind.PORTION_ZERO)
    # resource_claim
    RESERVED_FOR_NOBODY = (
        "reserved_for_nobody",
        "the ResourceClaim has devices, and no pod that it is reserved for exists",
    )
    STALE_RESERVATION = (
        "stale_reservation",
        "the ResourceClaim is reserved for a pod that does not exist, and for pods that do",
    )
    LEFT_PREPARED = (
        "left_prepared",
        "a DRA driver has prepared a ResourceClaim that the kubelet or the API server lacks",
    )
    SPEC_MISSING = (
        "spec_missing",
        "the CDI spec of a prepared ResourceClaim is missing, so its containers cannot start",
    )
    UNREADABLE_REGISTER = (
        "unreadable_register",
        "what the node's device plugin has registered of its GPUs cannot be read",
    )
    # any
    MALFORMED = "malformed", "the object's content cannot be decoded"


class Effect(Explained):
    """What an action achieves."""

    RECOVERY = "recovery", "a workload that failed gets another chance"
    TIDYING = "tidying", "a leftover is removed; its replacement already exists"
    REPAIR = "repair", "allocation records are corrected to match the node"


class SkipReason(Explained):
    """Why an object is skipped although a rule would act; the first that applies is reported."""

    # what is known of it
    INCOMPLETE_VIEW = "incomplete_view", "some of the data needed for a decision could not be read"
    NODE_UNKNOWN = "node_unknown", "the object's node is not known"
    NODE_NOT_READY = "node_not_ready", "the node is not ready, and its reports are out of date"
    PLUGIN_NOT_READY = (
        "plugin_not_ready",
        "the node advertises none of the pod's resource: the pod would fail again",
    )
    PLUGIN_CANNOT_SERVE = (
        "plugin_cannot_serve",
        (
            "the original device plugin can never serve such a pod, and nothing shows that the"
            " node's is vgpu's: the pod would fail again"
        ),
    )
    NO_NODE_EVIDENCE = "no_node_evidence", "only the node itself has the evidence; use --scope node"
    WAITS_FOR_OTHERS = (
        "waits_for_others",
        ("the pod waits for an image, a volume or an init container, or its plugin marks no pods"),
    )
    OWNER_WAITS = "owner_waits", "Allocate may still serve a pod: that pod comes first"
    OWNER_TERMINATES = (
        "owner_terminates",
        "the lock's owner is terminating and still has containers",
    )
    WOULD_OVERBOOK = (
        "would_overbook",
        "the repair would record more of a device than the device has",
    )
    SIZES_DIFFER = (
        "sizes_differ",
        "the sources report different sizes for the share: is a memory unit configured wrongly?",
    )
    STILL_MAPPED = "still_mapped", "a process still uses the file"
    TERMINAL_POD_EXISTS = "terminal_pod_exists", "the pod has ended but still exists"
    ONE_AT_A_TIME = "one_at_a_time", "another pod of the node that got a wrong answer goes first"
    ONE_SHOT = "one_shot", "only `vgpu reconcile run` may do this"
    # what protects it
    OTHER_SCHEDULER = (
        "other_scheduler",
        "the pod's GPU is another GPU scheduler's, whose shares vgpu does not read",
    )
    OPTED_OUT = "opted_out", 'the object or its node is annotated vgpu.dev/reconcile: "false"'
    OTHER_NAMESPACE = "other_namespace", "the object is in none of the selected namespaces"
    PROTECTED_NAMESPACE = "protected_namespace", "the object is in a protected namespace"
    STATIC_POD = "static_pod", "a static pod belongs to its kubelet"
    DAEMON_SET_POD = "daemon_set_pod", "the pod's DaemonSet replaces it"
    BARE_POD = "bare_pod", "no controller would recreate the pod (--evict-bare)"
    JOB_POD = (
        "job_pod",
        "the pod's Job has not counted it yet, or would count it as a failure: report only",
    )
    OWNER_KIND = (
        "owner_kind",
        "the owner's kind is not known to recreate the pod without side effects (owners)",
    )
    OWNER_POLICY = (
        "owner_policy",
        "the owner's own policy may affect more than this pod: report only",
    )
    OWNER_UNREAD = "owner_unread", "the owner's own policy could not be read: report only"
    TERMINATING = "terminating", "the pod is already being deleted"
    COMPLETED = "completed", "the pod has succeeded"
    RUNNING = "running", "the pod runs (--evict-running)"
    HIGH_PRIORITY = "high_priority", "the pod's priority is above the ceiling"
    # when
    TOO_YOUNG = "too_young", "the problem is not old enough yet"
    BACKING_OFF = (
        "backing_off",
        "pods of the same owner were evicted from this node a short time ago",
    )
    # how much
    RULE_MODE_PLAN = "rule_mode_plan", "the rule is set to plan only"
    NAMESPACE_MODE_PLAN = "namespace_mode_plan", "the object's namespace is set to plan only"
    NAMESPACE_UNREAD = (
        "namespace_unread",
        "the labels of the object's namespace decide, and could not be read: plan only",
    )
    SCHEME_MODE_PLAN = (
        "scheme_mode_plan",
        "vgpu only observes the sharing system of this pod: plan only (act_on_schemes)",
    )
    BREAKER_TRIPPED = (
        "breaker_tripped",
        "too many objects need an action at once: a person should look",
    )
    OWNER_LIMIT = "owner_limit", "the limit of the owner's replicas is reached in this cycle"
    NODE_LIMIT = "node_limit", "the node's limit is reached in this cycle"
    NAMESPACE_LIMIT = "namespace_limit", "the namespace's limit is reached in this cycle"
    POLICY_LIMIT = "policy_limit", "the limit of the namespace's policy is reached in this cycle"
    CYCLE_LIMIT = "cycle_limit", "the limit of this cycle is reached"


class ActionOutcome(Explained):
    """The result of an action."""

    DONE = "done", "the API server or the file system did it"
    DRY_RUN = "dry_run", "the API server would have done it"
    GONE = "gone", "the object no longer existed"
    CHANGED = "changed", "the object has changed since the plan was made: nothing was done"
    BLOCKED_BY_PDB = "blocked_by_pdb", "a PodDisruptionBudget does not allow it now"
    SEVERAL_PDBS = (
        "several_pdbs",
        "several PodDisruptionBudgets select the pod: the API cannot evict it",
    )
    THROTTLED = "throttled", "the API server asked for a longer wait than the deadline allows"
    FORBIDDEN = "forbidden", "the reconciler lacks a permission (RBAC)"
    FAILED = "failed", "the API server or the file system refused it for another reason"
    UNKNOWN = (
        "unknown",
        "the answer was lost and the object could not be read again: the action may be done",
    )
    NOT_LEADER = "not_leader", "another reconciler is the leader now: nothing was done"
    OUT_OF_TIME = (
        "out_of_time",
        (
            "not tried: the deadline passed, the program was stopping, or the API server stopped"
            " answering"
        ),
    )
