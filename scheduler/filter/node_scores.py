"""The scores of nodes for kube-scheduler, from how well each of them suits a pod; pure.

kube-scheduler takes whole numbers from 0 to :data:`BEST_SCORE`, and adds them to its own scores. A
pod is a small part of a node, so that the scores of two nodes differ by less than one of them. So
they are scaled among the nodes that are offered and take the pod:

    score(node) = BEST_SCORE  <=>  no offered node suits the pod better
    a suits the pod better than b  =>  score(a) >= score(b)

With a large weight the GPUs alone decide between the best node and the others.
"""

from collections.abc import Iterable, Mapping
from typing import Final

BEST_SCORE: Final = 10
"""Maximum score of a node (kube-scheduler, MaxExtenderPriority)."""


def extender_scores(suitabilities: Iterable[float]) -> Mapping[float, int]:
    """The score of each suitability of the offered nodes that take the pod."""
    distinct = set(suitabilities)
    if not distinct:
        return {}
    least, most = min(distinct), max(distinct)
    if least == most:
        return {most: BEST_SCORE}
    step = (BEST_SCORE - 1) / (most - least)  # the best score is for the best nodes alone
    return {each: int(step * (each - least)) for each in distinct} | {most: BEST_SCORE}
