"""gpushare's annotations on a pod, in units: which container has how much of which GPU.

There are two forms. The extender's form names one GPU for the whole pod, by index, and leaves each
container's memory to its limits. The form of ACK's scheduler has memory by container and GPU, both
counted from 0. In both a flag reports whether the plugin has served the pod, and the one time is
that of the flag's last change: the plugin overwrites the time of assuming with that of assigning.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from vgpu.model.names import Phase
from vgpu.model.objects import Pod
from vgpu.schemes.codec import ClaimError, remark
from vgpu.schemes.gpushare.node import MOST_UNITS, gpu_number
from vgpu.schemes.text import nanoseconds, number, object_name_of, seconds

INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
POD_TOTAL: Final = "ALIYUN_COM_GPU_MEM_POD"
GPU_TOTAL: Final = "ALIYUN_COM_GPU_MEM_DEV"
ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
CHANGED_AT: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ACK_ASSIGNED: Final = "scheduler.framework.gpushare.assigned"
ACK_CHANGED_AT: Final = "scheduler.framework.gpushare.assume-time"

ANNOTATIONS: Final = (
    *(INDEX, POD_TOTAL, GPU_TOTAL, ASSIGNED, CHANGED_AT),
    *(ALLOCATION, ACK_ASSIGNED, ACK_CHANGED_AT),
)
"""All of them; a claim is withdrawn by removing every one."""

Units = Mapping[str, Mapping[int, int]]
"""Container -> GPU -> units of memory, in the pod's order and by ascending index."""

_STATES = ((ASSIGNED, CHANGED_AT), (ACK_ASSIGNED, ACK_CHANGED_AT))

FLAGS: Final = (ASSIGNED, ACK_ASSIGNED)
"""The flags of both forms; the original plugin passes over a pod without a flag."""

_PASSED_OVER = "missing, so the original plugin passes over the pod"

_Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST_UNITS)]
_BY_CONTAINER = msgspec.json.Decoder(dict[str, dict[str, _Amount]])


class GpushareAnnotations(msgspec.Struct, frozen=True):
    """The content of a pod's annotations.

    Attributes:
        units: of every container that has some.
        phase: assumed or assigned.
        changed_at: when the phase was reached, unix seconds; None if unknown.
        remarks: what cannot be right, see :class:`vgpu.model.Claim`.
    """

    units: Units
    phase: Phase
    changed_at: float | None = None
    remarks: tuple[str, ...] = ()


# ---------------------------------------------------------------- reading


def read(pod: Pod, requested: Mapping[str, int]) -> GpushareAnnotations | None:
    """The content of the annotations; None if there are none.

    ``requested`` has the units that containers request, of those that run at the same time.
    Unreadable totals, flags and times are remarks only, since they do not change who has which
    GPU. Raises ClaimError where the GPU is unknown.
    """
    annotations = pod.annotations
    if not any(key in annotations for key in ANNOTATIONS):
        return None
    units = _by_container(pod) or _by_index(pod, requested)
    phase, changed_at, remarks = _state(annotations)
    return GpushareAnnotations(
        units, phase, changed_at, (*_contradictions(annotations, units, requested), *remarks)
    )


def _by_container(pod: Pod) -> Units:
    """ACK's form, ``{"<app container>":{"<card>":<units>}}``; 0 units of a GPU are left out."""
    text = pod.annotations.get(ALLOCATION)
    if text is None:
        return {}
    try:
        amounts = _BY_CONTAINER.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(pod, ALLOCATION, text, str(error)) from error
    apps = pod.apps
    if not {str(number) for number in range(len(apps))}.issuperset(amounts):
        raise _refusal(pod, ALLOCATION, text, f"a container that is none of {len(apps)}")
    by_container = {
        apps[int(number)]: {
            _gpu_index(pod, ALLOCATION, index, text): amount
            for index, amount in amounts[number].items()
            if amount
        }
        for number in sorted(amounts, key=int)
    }
    return {name: dict(sorted(units.items())) for name, units in by_container.items() if units}


def _by_index(pod: Pod, requested: Mapping[str, int]) -> Units:
    """The extender's form: all requested units, on one GPU."""
    text = pod.annotations.get(INDEX)
    if text is None:
        raise _refusal(pod, INDEX, "", "missing, so the GPU is unknown")
    if not requested:
        raise _refusal(pod, INDEX, text, "no container asks for memory")
    gpu = _gpu_index(pod, INDEX, text, text)
    return {container: {gpu: units} for container, units in requested.items()}


def _gpu_index(pod: Pod, key: str, index: str, text: str) -> int:
    number = gpu_number(index)
    if number is None:
        raise _refusal(pod, key, text, "not a GPU's index")
    return number


def _state(annotations: Mapping[str, str]) -> tuple[Phase, float | None, list[str]]:
    """Phase, its time and remarks about both; the flag of either form assigns the pod."""
    remarks = [
        remark(flag, "neither true nor false", annotations[flag])
        for flag, _ in _STATES
        if annotations.get(flag, "true") not in ("true", "false")
    ]
    assigned = [state for state in _STATES if annotations.get(state[0]) == "true"]
    phase = Phase.ASSIGNED if assigned else Phase.ASSUMED
    times = [time_key for _, time_key in assigned or _STATES if time_key in annotations]
    if phase is Phase.ASSUMED:
        if not any(flag in annotations for flag, _ in _STATES):
            remarks.append(remark(ASSIGNED, _PASSED_OVER, ""))
        if not times:
            remarks.append(remark(CHANGED_AT, _PASSED_OVER, ""))
    if not times:
        return phase, None, remarks
    changed_at = seconds(annotations[times[0]])
    if changed_at is None:
        remarks.append(remark(times[0], "not a time in nanoseconds", annotations[times[0]]))
    return phase, changed_at, remarks


def _contradictions(
    annotations: Mapping[str, str], units: Units, requested: Mapping[str, int]
) -> Iterator[str]:
    """Where totals and the two forms differ from the limits or from one another."""
    if {name: sum(amounts.values()) for name, amounts in units.items()} != requested:
        limits = ", ".join(f"{name} {units}" for name, units in requested.items())
        yield remark(ALLOCATION, f"the limits are {limits or 'none'}", annotations[ALLOCATION])
    gpus = {gpu for amounts in units.values() for gpu in amounts}
    if INDEX in annotations and {gpu_number(annotations[INDEX])} != gpus:
        yield remark(INDEX, f"{ALLOCATION} names {sorted(gpus)}", annotations[INDEX])
    total = sum(requested.values())
    if POD_TOTAL in annotations and number(annotations[POD_TOTAL], total) != total:
        yield remark(POD_TOTAL, f"the limits add up to {total}", annotations[POD_TOTAL])
    if GPU_TOTAL in annotations and number(annotations[GPU_TOTAL], MOST_UNITS) is None:
        yield remark(GPU_TOTAL, "not a number of units", annotations[GPU_TOTAL])


def _refusal(pod: Pod, key: str, text: str, detail: str) -> ClaimError:
    return ClaimError(object_name_of(pod), key, text, detail)


# ---------------------------------------------------------------- writing


def write_one_gpu(
    claim: GpushareAnnotations, gpu: int, gpu_total: int, object_name: str
) -> dict[str, str]:
    """The extender's form. ``gpu_total`` is the GPU's size in units. Raises ClaimError."""
    total = sum(units[gpu] for units in claim.units.values())
    return {
        INDEX: str(gpu),
        GPU_TOTAL: str(gpu_total),
        POD_TOTAL: str(total),
        **_write_state(_STATES[0], claim, object_name),
    }


def write_by_container(
    claim: GpushareAnnotations, numbers: Mapping[str, int], object_name: str
) -> dict[str, str]:
    """ACK's form. ``numbers`` has every container's, of the app containers. Raises ClaimError."""
    numbered = {str(numbers[name]): amounts for name, amounts in claim.units.items()}
    return {
        ALLOCATION: msgspec.json.encode(numbered).decode(),
        **_write_state(_STATES[1], claim, object_name),
    }


def assigned(pod: Pod, now: float) -> dict[str, str]:
    """What the plugin writes on a pod that it has served; {} if that is written already.

    Of the forms that the pod has. Raises ClaimError for a time that cannot be written.
    """
    annotations = pod.annotations
    forms = zip((INDEX, ALLOCATION), _STATES, strict=True)
    states = [state for key, state in forms if key in annotations or state[0] in annotations]
    written: dict[str, str] = {}
    for flag, time_key in states:
        if annotations.get(flag) != "true":
            written |= {flag: "true", time_key: nanoseconds(now, object_name_of(pod), time_key)}
    return written


def _write_state(
    keys: tuple[str, str], claim: GpushareAnnotations, object_name: str
) -> dict[str, str]:
    flag, time_key = keys
    assigned = {flag: "true" if claim.phase is Phase.ASSIGNED else "false"}
    if claim.changed_at is None:
        return assigned
    return assigned | {time_key: nanoseconds(claim.changed_at, object_name, time_key)}
