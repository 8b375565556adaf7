"""The quotas of namespaces, and what pods use of them; no I/O.

A pod counts from the moment at which a bind has reserved its GPUs until it is gone. Only pods of
namespaces that have a quota are counted.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec import structs

from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Namespace, ResourceQuota
from vgpu.placement.result import PlacementRefusal
from vgpu.quota.check import QuotaRefusal, check
from vgpu.quota.declarations import (
    NO_CONFIG_MAP,
    UnreadableLimit,
    declarations,
    gpu_admission_quota,
)
from vgpu.quota.limits import NamespaceQuota, resolve
from vgpu.quota.resources import Amounts
from vgpu.quota.usage import NamespaceUsage, PodUsage


class QuotaView(msgspec.Struct, frozen=True):
    """The quota of a namespace with what its pods use, by the model of the GPUs.

    ``refusal`` is why the quota refuses a certain pod, None if it does not.
    """

    quota: NamespaceQuota
    used: Mapping[str, Amounts]
    refusal: PlacementRefusal | None = None


class QuotaState:
    """The quotas that the module describes. Not for several threads: the cache locks."""

    def __init__(self, relieved: Callable[[str], object]) -> None:
        """``relieved`` is called with each namespace whose quota may admit more pods now."""
        self._relieved = relieved
        self._namespaces: dict[str, Namespace | MalformedObject] = {}
        self._quotas: dict[str, dict[str, ResourceQuota | MalformedObject]] = {}
        self._gpu_admission = NO_CONFIG_MAP
        self._resolved: dict[str, NamespaceQuota] = {}
        self._usage: dict[str, NamespaceUsage] = {}

    # ------------------------------------------------------------ declarations

    def set_namespace(self, name: str, namespace: Namespace | MalformedObject | None) -> None:
        """The Namespace as it is now; None if it is gone or declares no quota."""
        if namespace is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = namespace
        self._resolved.pop(name, None)

    def set_resource_quota(
        self, namespace: str, name: str, quota: ResourceQuota | MalformedObject | None
    ) -> None:
        """The ResourceQuota as it is now; None if it is gone or limits no shared GPUs."""
        quotas = self._quotas.setdefault(namespace, {})
        if quota is None:
            quotas.pop(name, None)
        else:
            quotas[name] = quota
        if not quotas:
            del self._quotas[namespace]
        self._resolved.pop(namespace, None)

    def set_gpu_admission(self, data: Mapping[str, str] | None) -> None:
        """The data of gpu-admission's ConfigMap; None if there is none."""
        self._gpu_admission = gpu_admission_quota(data)
        self._resolved.clear()

    def quota(self, namespace: str) -> NamespaceQuota:
        """The quota of a namespace; false if it limits nothing."""
        quota = self._resolved.get(namespace)
        if quota is None:
            quota = self._resolved[namespace] = self._resolve(namespace)
        return quota

    def limited(self) -> list[NamespaceQuota]:
        """The quotas of the namespaces with a quota or with counted pods, by name."""
        names = {*self._namespaces, *self._quotas, *self._gpu_admission.entries, *self._usage}
        return [quota for name in sorted(names) if (quota := self.quota(name))]

    # ------------------------------------------------------------ pods

    def count(self, pod: PodRef, usage: PodUsage | None) -> None:
        """Count a pod with this usage from now on; None no more."""
        pods = self._usage.get(pod.namespace)
        if pods is None:
            if usage is None:
                return
            pods = self._usage[pod.namespace] = NamespaceUsage()
        before = pods.set(pod.uid, usage)
        if before is not None and before != usage:
            self._relieved(pod.namespace)

    @contextmanager
    def supposing(self) -> Iterator[Callable[[PodRef, PodUsage], None]]:
        """Yields a function that counts further pods until the end of the context."""
        supposed: list[tuple[NamespaceUsage, str, PodUsage | None]] = []

        def suppose(pod: PodRef, usage: PodUsage) -> None:
            pods = self._usage.setdefault(pod.namespace, NamespaceUsage())
            supposed.append((pods, pod.uid, pods.set(pod.uid, usage)))

        try:
            yield suppose
        finally:
            for pods, uid, before in reversed(supposed):
                pods.set(uid, before)

    def forget(self, namespace: str) -> None:
        """Count no pod of a namespace."""
        self._usage.pop(namespace, None)

    def relieve(self, namespace: str) -> None:
        """Report that the quota of a namespace has changed."""
        self._relieved(namespace)

    def used(self, namespace: str) -> Mapping[str, Amounts]:
        """What the counted pods of a namespace use, by the model of the GPUs."""
        pods = self._usage.get(namespace)
        return pods.by_model if pods is not None else {}

    def view(self, quota: NamespaceQuota, refusal: PlacementRefusal | None = None) -> QuotaView:
        """The quota of a namespace with what its pods use now."""
        used = {model: dict(amounts) for model, amounts in self.used(quota.namespace).items()}
        return QuotaView(quota, used, refusal)

    def check(self, pod: PodRef, usage: PodUsage, *, is_placed: bool) -> QuotaRefusal | None:
        """Why the pod does not fit beside the others of its namespace; None if it does."""
        quota = self.quota(pod.namespace)
        pods = self._usage.get(pod.namespace)
        if pods is None:
            return check(quota, {}, usage, is_placed=is_placed)
        own = pods.set(pod.uid, None)
        refusal = check(quota, pods.by_model, usage, is_placed=is_placed)
        if own is not None:
            pods.set(pod.uid, own)
        return refusal

    # ------------------------------------------------------------ parts

    def _resolve(self, name: str) -> NamespaceQuota:
        namespace = self._namespaces.get(name)
        quotas = self._quotas.get(name, {}).values()
        if namespace is None and not quotas and self._gpu_admission is NO_CONFIG_MAP:
            return NamespaceQuota(name)  # nothing is declared, as nearly always
        malformed = [each for each in (namespace, *quotas) if isinstance(each, MalformedObject)]
        declared = declarations(
            name,
            [quota for quota in quotas if isinstance(quota, ResourceQuota)],
            namespace if isinstance(namespace, Namespace) else None,
            self._gpu_admission,
        )
        unreadable = tuple(UnreadableLimit("", each.title, each.detail) for each in malformed)
        return resolve(name, structs.replace(declared, unreadable=declared.unreadable + unreadable))
