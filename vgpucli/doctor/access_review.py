"""Rights, and the questions to the API server whether a user has them; pure.

Such a question is created as an object that the server answers and does not keep, so this kind is
not in :mod:`vgpu.kube.kinds`. Format: ``authorization.k8s.io/v1``.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders

_ACCOUNT: Final = "system:serviceaccount"


class Right(msgspec.Struct, frozen=True, order=True):
    """A verb on a resource.

    Attributes:
        group, resource: as RBAC has them; the resource may have a subresource (``pods/eviction``).
        verb: such as ``list``.
        namespace: where; "" is the whole cluster.
        name: the only object that it is about; "" is all.
    """

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """The right for people, such as "list nodes"."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{name}{place}"

    @property
    def rule(self) -> str:
        """The line of a Role or ClusterRole that grants it."""
        names = f", resourceNames: [{self.name}]" if self.name else ""
        group = self.group or '""'
        return (
            f"- {{apiGroups: [{group}], resources: [{self.resource}]{names}, verbs: [{self.verb}]}}"
        )


class ReviewStatus(wire.Wire, frozen=True):
    """``status`` of an answer."""

    allowed: bool = False


class ReviewFields(wire.ObjectFields, frozen=True):
    """The answer to a SubjectAccessReview."""

    status: ReviewStatus


def project_review(review: ReviewFields, _: str) -> bool:
    """Whether the user has the right."""
    return review.status.allowed


ACCESS_REVIEWS: Final = ApiKind(
    "SubjectAccessReview",
    "authorization.k8s.io/v1",
    "subjectaccessreviews",
    Decoders.of(ReviewFields),
    project_review,
    namespaced=False,
)

# ---------------------------------------------------------------- questions


def service_account_user(namespace: str, name: str) -> str:
    """The user name of a ServiceAccount."""
    return f"{_ACCOUNT}:{namespace}:{name}"


def account_access(namespace: str, name: str, right: Right) -> Mapping[str, Any]:
    """The question whether a ServiceAccount has a right, with the groups that it always has."""
    groups = [f"{_ACCOUNT}s", f"{_ACCOUNT}s:{namespace}", "system:authenticated"]
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": service_account_user(namespace, name),
            "groups": groups,
            "resourceAttributes": _attributes(right),
        },
    }


def _attributes(right: Right) -> Mapping[str, str]:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "namespace": right.namespace,
        "name": right.name,
    }
    return {key: text for key, text in attributes.items() if text}
