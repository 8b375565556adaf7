"""Whether a program's token names its node, without which an admission policy refuses its writes.

The chart's policy (accountPolicy.ownNode) allows the account of a DaemonSet only objects of the
node that the token names, and then sets ``--require-node-token``.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import click

from vgpu.apiserver.connection import ClusterError
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.node_key import NODE_KEY, OWN_NODE_VALUE
from vgpu.kube.self_review import SELF_REVIEW, SELF_REVIEWS
from vgpu.kube.verbs import CREATE, ApiVerb
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

METRIC: Final = "vgpu_node_token_valid"

AGAIN_SECONDS: Final = 10.0
"""Minimum interval between two questions, in seconds: the token is renewed now and then."""

node_token_flag: Final = click.option(
    "--require-node-token",
    is_flag=True,
    help="Be ready only if the token names this node: an admission policy requires it.",
)


class SelfReviewApi(Protocol):
    """The API server."""

    def send(
        self, verb: ApiVerb, kind: ApiKind[Any], namespace: str, name: str, body: object
    ) -> bytes:
        """Send a body; returns the answer. Raises ClusterError and SourceError."""
        ...


class NodeToken:
    """Asks the API server until the token names the node. Any thread may call every method."""

    def __init__(
        self,
        api: SelfReviewApi,
        node: str,
        *,
        is_required: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked unless it ``is_required``."""
        self._api = api
        self._node = node
        self._monotonic = monotonic
        self._is_required = is_required
        self._lock = threading.Lock()
        self._problem = "the API server has not been asked yet which node the token names"
        self._again = float("-inf")

    def complaint(self) -> str:
        """Why writes are refused; "" if they are not. It asks at most now and then."""
        if not self._is_required:
            return ""
        with self._lock:
            if self._problem and self._monotonic() >= self._again:
                self._ask()
                self._again = self._monotonic() + AGAIN_SECONDS
            return self._problem

    def numbers(self, others: Callable[[], Mapping[str, float]]) -> Callable[[], dict[str, float]]:
        """A reader of a program's own numbers with that of the token, if it is required."""

        def read() -> dict[str, float]:
            own = {METRIC: float(not self._problem)} if self._is_required else {}
            return {**others(), **own}

        return read

    def _ask(self) -> None:
        before = self._problem
        try:
            answer = self._api.send(CREATE, SELF_REVIEWS, "", "", SELF_REVIEW)
            user, node = SELF_REVIEWS.one(answer, "SelfSubjectReview")
            self._problem = _problem(user, node, self._node)
        except (ClusterError, SourceError) as error:
            self._problem = f"it is unknown which node the token names: {error}"
        if self._problem != before and self._problem:
            log.error(
                "node token unusable",
                extra={"reason": self._problem, "key": NODE_KEY, "value": OWN_NODE_VALUE},
            )


def _problem(user: str, node: str, own: str) -> str:
    """What is wrong with the token; "" if it names the own node."""
    if node == own:
        return ""
    names = f"names node {node}" if node else "names no node"
    return (
        f"the token of {user} {names} ({NODE_KEY}), and this is node {own}: the admission policy"
        f" refuses all writes. Use a token that is bound to the pod, from Kubernetes 1.30 on, or"
        f" set {OWN_NODE_VALUE}: false in the chart"
    )
