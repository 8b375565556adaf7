"""Every word the reconciler decides with, once, for code, metrics, output and runbooks.

A value is a label of a metric and a field of the JSON output; its explanation is what the table
and the runbooks say.
"""

from vgpu.reasons import Explained


class Rule(Explained):
    """What is looked for; where several find the same subject, the first that may act does."""

    REFUSED = "refused", "the kubelet did not admit the pod: it will never run"
    TERMINATED = "terminated", "its node's shutdown killed the pod: it will not run again"
    OVER_PROMISED = "over_promised", "its scheduler promised more of a GPU than there is"
    PRESTART_FAILED = "prestart_failed", "the device plugin refuses to start the pod's containers"
    NO_GPU_MATCHED = "no_gpu_matched", "gpushare's plugin found no pod for the kubelet's request"
    ASSUMED_EXPIRED = "assumed_expired", "promised a device and bound, but never given it"
    ASSUMED_UNBOUND = "assumed_unbound", "promised a device, but never bound to the node"
    STALE_LOCK = "stale_lock", "a node lock whose owner needs it no more"
    STALE_HANDSHAKE = "stale_handshake", "the scheduler gave the node up, but its plugin lives"
    LEFTOVER_CLAIM = "leftover_claim", "served or ended, but its claim still asks for devices"
    CARD_DRIFT = "card_drift", "the annotation names another GPU than the container really has"
    RECOVER = "recover", "runs on its device, but the books forgot that it was handed out"
    DOUBLE_BOOKED = "double_booked", "more is held of a device than there is"
    RUNNING_WITHOUT_DEVICE = "running_without_device", "runs, asks for a device and has none"
    LOST_DEVICE = "lost_device", "its device is gone or unhealthy"
    UNOWNED_PROCESS = "unowned_process", "a process uses a device that nobody gave it"
    OVER_LIMIT = "over_limit", "uses more memory of a device than it was given"
    ORPHAN_SHIM_DIR = "orphan_shim_dir", "a shim's folder whose pod is no more"
    KUBESHARE = "kubeshare", "a holder pod or SharePod that KubeShare has lost track of"
    MALFORMED_OBJECT = "malformed_object", "an object at the API server that cannot be read"


class Cause(Explained):
    """Why a rule found it: the reason code of an entry."""

    # refused
    UNEXPECTED_ADMISSION_ERROR = (
        "unexpected_admission_error",
        "admission failed on the node, mostly in Allocate",
    )
    OUT_OF_RESOURCE = "out_of_resource", "the kubelet had too little of the resource"
    TOPOLOGY_AFFINITY_ERROR = "topology_affinity_error", "the topology manager refused it"
    PRESTART_CHECK_ERROR = "prestart_check_error", "the plugin failed the pod after its check"
    NODE_AFFINITY = "node_affinity", "the node's labels did not fit the pod any more"
    NODE_SHUTDOWN = "node_shutdown", "the node was being shut down"
    OTHER = "other", "another reason of the kubelet's, which the evidence quotes; nothing ever ran"
    # terminated
    NODE_WENT_DOWN = "node_went_down", "the kubelet ended it when the node was shut down"
    # over_promised
    FREE_BELOW_ZERO = (
        "free_below_zero",
        "gpushare's extender takes free memory below zero for very much: restart the extender",
    )
    INIT_CONTAINERS_MISCOUNTED = (
        "init_containers_miscounted",
        "HAMi 2.10 takes app containers for init containers and counts them less than they are",
    )
    SAME_GPU_TWICE = (
        "same_gpu_twice",
        "Volcano counts only one of a pod's containers on the same GPU",
    )
    CACHE_BEHIND = (
        "cache_behind",
        "gpu-admission places pods faster than it hears of those before them",
    )
    SUM_EXCEEDED = "sum_exceeded", "the promises come to more than the GPU has"
    # prestart_failed
    PRESTART_CHECK_FAILED = "prestart_check_failed", "PreStartContainer refused the container"
    CROSSED = "crossed", "without CDI the kubelet has for it what was meant for another pod"
    ALLOCATE_CHECK_FAILED = "allocate_check_failed", "Allocate refused the container"
    # no_gpu_matched
    NO_GPU_TO_RUN = "no_gpu_to_run", "its environment was poisoned with no-gpu-has-…-to-run"
    # assumed_expired, assumed_unbound
    NEVER_ASSIGNED = "never_assigned", "no Allocate has served it"
    NEVER_BOUND = "never_bound", "the binding failed and the claim stayed"
    # stale_lock
    OWNER_GONE = "owner_gone", "the lock's owner does not exist"
    OWNER_ENDED = "owner_ended", "the lock's owner has ended"
    OWNER_SERVED = "owner_served", "the lock's owner has its devices"
    NOBODY_WAITS = "nobody_waits", "the lock does not say whose it is, and nobody is being served"
    LOCK_EXPIRED = "lock_expired", "past its scheduler's time-out, but a pod may still need it"
    # stale_handshake
    PLUGIN_LIVES = "plugin_lives", "the node offers the plugin's resources"
    # leftover_claim
    ENDED_WITH_CLAIM = "ended_with_claim", "a pod that has ended is still a candidate for Allocate"
    SERVED_WITH_CLAIM = "served_with_claim", "a pod that was served is still a candidate"
    # card_drift
    CARD_DIFFERS = "card_differs", "better sources than its annotation place it elsewhere"
    # recover
    RUNS_UNASSIGNED = "runs_unassigned", "it runs, but its claim was never marked as assigned"
    RUNS_UNCLAIMED = "runs_unclaimed", "it runs on a known GPU, but its annotations say nothing"
    # double_booked
    SAME_SLICE = "same_slice", "two pods hold the same slice"
    OVERCOMMITTED = "overcommitted", "the shares are together more than the device"
    # running_without_device
    NO_GRANT = "no_grant", "the kubelet has given it none"
    NO_CLAIM = "no_claim", "no scheduler has chosen a device for it"
    # lost_device
    DEVICE_MISSING = "device_missing", "the device is not on the node, or no longer answers"
    DEVICE_UNHEALTHY = "device_unhealthy", "the device is unhealthy"
    # unowned_process
    PROCESS_WITHOUT_ALLOCATION = (
        "process_without_allocation",
        "its container was given nothing of the device",
    )
    # over_limit
    MORE_THAN_GIVEN = (
        "more_than_given",
        "its processes use more of the device's memory than its share",
    )
    # orphan_shim_dir
    POD_GONE = "pod_gone", "no pod of that UID is on the node, and no process maps the file"
    # kubeshare
    ORPHANED_HOLDER = "orphaned_holder", "it keeps a GPU for a virtual GPU that nobody uses"
    FLOAT_SUM = "float_sum", "refused because decimals do not add up to 1 in floating point"
    VANISHED_GPUID = "vanished_gpuid", "its virtual GPU has no holder pod any more"
    COMPLETED_FOR_EVER = "completed_for_ever", "its pod completes and is made again, for ever"
    # any
    MALFORMED = "malformed", "what it says cannot be read"


class Effect(Explained):
    """What an action is good for."""

    RECOVERY = "recovery", "something that does not work gets another chance"
    TIDYING = "tidying", "a leftover is removed; its replacement is already there"
    REPAIR = "repair", "the books are made to say what is"


class SkipReason(Explained):
    """Why a subject is skipped although a rule would act; the first that applies is told."""

    # what is known of it
    INCOMPLETE_VIEW = "incomplete_view", "not everything needed to judge it could be read"
    NODE_UNKNOWN = "node_unknown", "its node is not known"
    NODE_NOT_READY = "node_not_ready", "its node is not ready: nothing it says is news"
    PLUGIN_NOT_READY = (
        "plugin_not_ready",
        "its node offers none of its resource: it would fail again",
    )
    NO_NODE_EVIDENCE = "no_node_evidence", "only the node itself can tell; use --scope node"
    WAITS_FOR_OTHERS = (
        "waits_for_others",
        "it waits for an image, a volume or an init container, or its plugin marks no pod",
    )
    OWNER_WAITS = "owner_waits", "a pod may still be served by Allocate: free that pod first"
    OWNER_TERMINATES = "owner_terminates", "its owner still has containers"
    WOULD_OVERBOOK = "would_overbook", "the repair would book more of a device than there is"
    SIZES_DIFFER = (
        "sizes_differ",
        "those who gave it its share tell different sizes: is a unit told wrongly?",
    )
    STILL_MAPPED = "still_mapped", "a process still uses the file"
    TERMINAL_POD_EXISTS = "terminal_pod_exists", "its pod has ended but is still there"
    ONE_AT_A_TIME = "one_at_a_time", "another pod of its node that was crossed goes first"
    ONE_SHOT = "one_shot", "only the long-running loop may do this"
    # what protects it
    OPTED_OUT = "opted_out", 'it or its node is annotated vgpu.dev/reconcile: "false"'
    OTHER_NAMESPACE = "other_namespace", "in none of the namespaces that were asked for"
    PROTECTED_NAMESPACE = "protected_namespace", "in a protected namespace"
    STATIC_POD = "static_pod", "a static pod belongs to its kubelet"
    DAEMON_SET_POD = "daemon_set_pod", "its DaemonSet replaces it"
    BARE_POD = "bare_pod", "nobody would make it again (--evict-bare)"
    JOB_POD = (
        "job_pod",
        "its Job has not counted it yet, or would count it as a failure: report only",
    )
    OWNER_KIND = "owner_kind", "its owner's kind is not known to make it again at no cost (owners)"
    OWNER_POLICY = (
        "owner_policy",
        "its owner's own policy may touch more than this pod: report only",
    )
    OWNER_UNREAD = "owner_unread", "its owner's own policy could not be read: report only"
    TERMINATING = "terminating", "it is being deleted already"
    COMPLETED = "completed", "it has succeeded"
    RUNNING = "running", "it runs (--evict-running)"
    HIGH_PRIORITY = "high_priority", "its priority is above the ceiling"
    # when
    TOO_YOUNG = "too_young", "it has not been so for long enough"
    BACKING_OFF = "backing_off", "its owner's pods were evicted from this node a short time ago"
    # how much
    RULE_MODE_PLAN = "rule_mode_plan", "its rule is set to plan only"
    BREAKER_TRIPPED = "breaker_tripped", "too many want action at once: a person should look"
    OWNER_LIMIT = "owner_limit", "enough of its owner's replicas are acted on in this cycle"
    NODE_LIMIT = "node_limit", "the limit of its node is reached in this cycle"
    NAMESPACE_LIMIT = "namespace_limit", "the limit of its namespace is reached in this cycle"
    CYCLE_LIMIT = "cycle_limit", "the limit of this cycle is reached"


class ActionOutcome(Explained):
    """What became of an action."""

    DONE = "done", "the API server or file system did it"
    DRY_RUN = "dry_run", "the API server would have done it"
    GONE = "gone", "it was not there any more"
    CHANGED = "changed", "it has changed since it was looked at: nothing was done"
    BLOCKED_BY_PDB = "blocked_by_pdb", "a PodDisruptionBudget does not allow it now"
    SEVERAL_PDBS = "several_pdbs", "several PodDisruptionBudgets select it: the API cannot evict it"
    THROTTLED = "throttled", "the API server asked us to wait longer than we may"
    FORBIDDEN = "forbidden", "a right is missing"
    FAILED = "failed", "the API server or file system refused it otherwise"
    UNKNOWN = "unknown", "the answer was lost, and it could not be read again: it may be done"
    NOT_LEADER = "not_leader", "another reconciler leads now: nothing was done"
    OUT_OF_TIME = (
        "out_of_time",
        "not tried: the deadline came, we were told to stop, or the server fell silent",
    )
