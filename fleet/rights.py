"""The rights with which the page reads everything: the table that it shows, and no right to write.

Where a right is missing, the page lacks what it is for, and its notes have the API server's answer.
"""

from typing import Final

from reconciler.state_store import CONFIG_MAP
from vgpucli.doctor.check_rights import OWN, SYSTEM, Rights

_LIST: Final = ("list",)
_GET: Final = ("get",)
_KUEUE: Final = "kueue.x-k8s.io"
_VOLCANO: Final = "scheduling.volcano.sh"
_KAI: Final = "scheduling.run.ai"
_ADMISSION: Final = "admissionregistration.k8s.io"

RIGHTS: Final = (
    Rights("nodes", _LIST),
    Rights("pods", ("get", "list")),
    Rights("namespaces", _LIST, need="quotas and teams"),
    Rights("resourcequotas", _LIST, need="quotas"),
    Rights("configmaps", _LIST, namespace=SYSTEM, need="unhealthy GPUs of gpushare"),
    Rights("configmaps", _GET, namespace=SYSTEM, need="quotas and units of the systems"),
    Rights("configmaps", _LIST, need="names of HAMi's resources"),
    Rights("sharepods", _LIST, "kubeshare.nthu", need="KubeShare"),
    Rights("resourceclaims", _LIST, "resource.k8s.io", need="DRA"),
    Rights("resourceslices", _LIST, "resource.k8s.io", need="DRA"),
    Rights("daemonsets", _LIST, "apps", need="systems"),
    Rights("deployments", _LIST, "apps", need="systems"),
    Rights("mutatingwebhookconfigurations", _LIST, _ADMISSION, need="systems"),
    Rights("validatingadmissionpolicies", _LIST, _ADMISSION, need="systems"),
    Rights("validatingadmissionpolicybindings", _LIST, _ADMISSION, need="systems"),
    Rights("events", _LIST, need="what the reconciler did"),
    Rights("configmaps", _GET, "", OWN, CONFIG_MAP, "what the reconciler did"),
    Rights("leases", _LIST, "coordination.k8s.io", "kube-node-lease", need="clocks of nodes"),
    Rights("clusterqueues", _LIST, _KUEUE, need="queues of Kueue"),
    Rights("localqueues", _LIST, _KUEUE, need="queues of Kueue"),
    Rights("cohorts", _LIST, _KUEUE, need="queues of Kueue"),
    Rights("resourceflavors", _LIST, _KUEUE, need="queues of Kueue"),
    Rights("workloads", _LIST, _KUEUE, need="queues of Kueue"),
    Rights("configmaps", _GET, "", "kueue-system", "kueue-manager-config", "units of Kueue"),
    Rights("queues", _LIST, _VOLCANO, need="queues of Volcano"),
    Rights("podgroups", _LIST, _VOLCANO, need="queues of Volcano"),
    Rights("bindrequests", _LIST, _KAI, need="KAI Scheduler"),
    Rights("podgroups", _LIST, _KAI, need="KAI Scheduler"),
    Rights("queues", _LIST, _KAI, need="KAI Scheduler"),
)
