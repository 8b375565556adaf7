"""Pods that have a sharing system's marks, and neither an allocation nor a request. Pure.

Their share of a GPU, if they have one, is unknown: HAMi's label stays where somebody has removed
the annotations, and other systems than HAMi set it, too.
"""

from collections.abc import Iterable, Iterator

from vgpu.kube.kept_keys import kept_keys
from vgpu.model.folding import examples_text
from vgpu.model.objects import Pod, holds_devices
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.other_schedulers import other_scheduler
from vgpu.schemes.registry import registry


def marks_of(pod: Pod) -> tuple[str, ...]:
    """The annotations and labels that show that the pod shares GPUs, each once."""
    is_mark = kept_keys().is_mark
    return tuple(sorted({key for key in (*pod.labels, *pod.annotations) if is_mark(key)}))


def has_only_marks(pod: Pod, codecs: Iterable[SchemeCodec]) -> bool:
    """Whether nothing but marks shows that the pod, which has not ended, shares GPUs.

    ``codecs`` are those of all systems.
    """
    if any(each.broken or any(each.limits.values()) for each in pod.containers):
        return False
    if pod.uses_resource_claims or not holds_devices(pod) or not marks_of(pod):
        return False
    if pod.group_gpus or other_scheduler(pod) is not None or registry().keeps_for_others(pod):
        return False
    try:
        return all(codec.claim(pod) is None for codec in codecs)
    except ClaimError:
        return False


def marked_note(pods: Iterable[Pod]) -> Iterator[str]:
    """The note about these pods, with the first few of them; none if there are none."""
    codecs = registry().codecs({})
    marked = [pod for pod in pods if has_only_marks(pod, codecs)]
    if marked:
        names = examples_text(sorted(f"{each.ref.namespace}/{each.ref.name}" for each in marked))
        keys = examples_text(sorted({key for each in marked for key in marks_of(each)}))
        yield (
            f"pods with marks of a sharing system ({keys}) and neither an allocation nor a request;"
            f" what they have of a GPU is unknown: {names}"
        )
