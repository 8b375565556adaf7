"""Why a SharePod is as it is: reasons of conditions, events and metrics, each with a sentence."""

from vgpu.model.reasons import Explained


class UnplacedReason(Explained):
    """Why a node does not take a SharePod; the value is a label of metrics."""

    OTHER_NODE = "other_node", "the SharePod names another node"
    NODE_NOT_READY = "node_not_ready", "the node is not ready"
    CORDONED = "cordoned", "the node is cordoned"
    TAINT = "taint", "the node has a taint that the SharePod does not tolerate"
    SELECTOR = "selector", "the node does not match the node selector or the node affinity"
    CPU = "cpu", "the node has too little free CPU"
    MEMORY = "memory", "the node has too little free memory"
    PODS = "pods", "the node has as many pods as it may have"
    NO_GPUS = "no_gpus", "the node has no nvidia.com/gpu"
    UNKNOWN_SIZE = "unknown_size", "the memory of the node's GPUs is unknown (kubeshare/gpu_info)"
    NO_FITTING_GPU = "no_fitting_gpu", "no virtual GPU has room, and no GPU is free"
    AFFINITY = "affinity", "the affinity label is on a virtual GPU that does not take it"


class SharePodReason(Explained):
    """The reason of a condition or of an event, as Kubernetes writes such words."""

    # Scheduled
    PLACED = "Placed", "vgpu has chosen the node and the virtual GPU"
    CHOSEN_BY_USER = "ChosenByUser", "the user has chosen the node"
    UNSCHEDULABLE = "Unschedulable", "no node takes the SharePod"
    INVALID_REQUEST = "InvalidRequest", "the annotations do not allow this request"
    GPUID_WITHOUT_NODE = "GpuidWithoutNode", "a GPUID is set and spec.nodeName is not"
    # Bound
    BOUND = "Bound", "the GPU of the virtual GPU is known"
    NOT_SHARED = "NoGpuRequested", "the SharePod requests no GPU"
    NOT_PLACED = "NotPlaced", "the SharePod has no virtual GPU yet"
    HOLDER_PENDING = "HolderPending", "the holder pod of the virtual GPU has no GPU yet"
    GPU_CHANGED = "GpuChanged", "the virtual GPU has another GPU than its pods use"
    GPU_TAKEN = "GpuTaken", "no GPU of the node is free for the holder pod"
    RESOURCE_EXCEEDED = "ResourceExceeded", "the virtual GPU has less free than requested"
    NO_PORT = "NoPort", "all ports of pod managers of the node are taken"
    NODE_LOST = "NodeLost", "the node is gone or not ready"
    # Ready
    POD_READY = "PodReady", "the pod is ready"
    POD_NOT_READY = "PodNotReady", "the pod is not ready"
    POD_MISSING = "PodMissing", "the pod does not exist yet"
    POD_REFUSED = "PodRefused", "the API server refuses the pod"
    POD_EXISTS = "PodExists", "a pod of this name exists and is not the SharePod's"
    FINISHED = "Finished", "the pod has ended and is not recreated"
    # events only
    MALFORMED = "Malformed", "the object cannot be read"
    HOLDER_FAILED = "HolderFailed", "the holder pod of the virtual GPU has ended"
    IDLE = "Idle", "no pod uses the virtual GPU"
    POD_FAILED = "PodFailed", "the pod has ended and is recreated"
    POD_CREATED = "PodCreated", "the pod was created"
