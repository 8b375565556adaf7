"""The question to the API server who the asking user is, and the node that its token names; pure.

A token of the kubelet's is bound to its pod, and from Kubernetes 1.30 on the API server knows the
pod's node (KEP-4193, feature ServiceAccountTokenPodNodeInfo). Format:
``authentication.k8s.io/v1``. Every user may ask (ClusterRole system:basic-user).
"""

from collections.abc import Mapping
from typing import Any, Final

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.node_key import NODE_KEY


class SelfReviewUser(wire.Wire, frozen=True):
    """``status.userInfo``."""

    username: str = ""
    extra: Mapping[str, tuple[str, ...]] = {}


class SelfReviewStatus(wire.Wire, frozen=True):
    """``status`` of an answer."""

    userInfo: SelfReviewUser = SelfReviewUser()  # noqa: N815  # Kubernetes' name


class SelfReviewFields(wire.ObjectFields, frozen=True):
    """The answer to a SelfSubjectReview."""

    status: SelfReviewStatus


def project_self_review(review: SelfReviewFields, _: str) -> tuple[str, str]:
    """The user's name, and the node that its token names; "" if it names none."""
    user = review.status.userInfo
    return user.username, "".join(user.extra.get(NODE_KEY, ())[:1])


SELF_REVIEWS: Final = ApiKind(
    "SelfSubjectReview",
    "authentication.k8s.io/v1",
    "selfsubjectreviews",
    Decoders.of(SelfReviewFields),
    project_self_review,
    namespaced=False,
)

SELF_REVIEW: Final[Mapping[str, Any]] = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "SelfSubjectReview",
}
"""The question."""
