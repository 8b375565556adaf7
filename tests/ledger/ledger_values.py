"""Small values to say things with, and strategies that say anything at all."""

from random import Random

import msgspec
from hypothesis import strategies as st

from vgpu.ledger import Evidence, Statement, Wanted
from vgpu.ledger.statements import LIMITS
from vgpu.model.allocation import Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.objects import Container, ContainerState, Pod, Status
from vgpu.model.units import GIB

A, B, C = "GPU-a", "GPU-b", "GPU-c"
GPUS = tuple(Device(uuid=uuid, index=i, memory_bytes=10 * GIB) for i, uuid in enumerate((A, B, C)))
NODE = "node-0"
KUBELET = (Source.POD_RESOURCES, Source.CHECKPOINT)


def ref(uid):
    return PodRef(uid, "team", f"pod-{uid}")


def pod(uid, phase="Running", state=ContainerState.RUNNING, **changes):
    """A pod of one container, bound to the node."""
    whole = Pod(
        ref=ref(uid),
        node=NODE,
        containers=(Container("main"),),
        phase=phase,
        statuses=(Status("main", state),) if state else (),
    )
    return msgspec.structs.replace(whole, **changes)


def statement_of(source, device, gib=None, *, uid="u1", cores=None, **changes):
    """A statement about container main of a pod, with one share unless ``shares`` has others."""
    statement = Statement(
        source=source,
        pod=PodRef(uid, "", ""),
        container="main",
        shares=(Share(device, None if gib is None else gib * GIB, cores),),
        scheme=Scheme.NONE if source is Source.PROCESS else Scheme.VOLCANO,
        alive=source is Source.PROCESS,
    )
    return msgspec.structs.replace(statement, **changes)


def evidence(*statements, **changes):
    """A node with three GPUs whose only pod, if no others are passed, is u1, running."""
    whole = Evidence(
        node=NODE,
        devices=GPUS,
        statements=statements,
        pods=(pod("u1"),),
        pods_complete=True,
        read=frozenset(Source),
    )
    return msgspec.structs.replace(whole, **changes)


def entry(ledger, device):
    """The entry of a device."""
    return next(entry for entry in ledger.devices if entry.device.uuid == device)


def where(ledger):
    """(UID, container) -> the devices that it holds, those that are not on the node included."""
    found = {}
    for holding in ledger.holdings:
        found.setdefault((holding.pod.uid, holding.container), []).append(holding.share.device)
    return found


def kinds(ledger):
    return [conflict.kind for conflict in ledger.conflicts]


# ---------------------------------------------------------------- anything at all

UIDS = ("u1", "u2", "u3")
NAMES = (A, A, B, C, "0", "1", "GPU-a[0-1]", "GPU-gone", "")
CONTAINERS = (
    (Container("main"),),
    (Container("main"), Container("side", kind=ContainerKind.INIT)),
    (Container("main"), Container("side", kind=ContainerKind.SIDECAR)),
)


def any_share(random):
    return Share(
        random.choice(NAMES),
        random.choice([None, GIB, 2 * GIB, 6 * GIB]),
        random.choice([None, 0, 250, 255, 1000]),
    )


def any_slices(random):
    return tuple(
        (resource, tuple(sorted(random.sample("abcdef", random.randint(1, 3)))))
        for resource in ("r/gpu", "r/memory")
        if random.random() < 0.4
    )


OF_WHOLE_PODS = {Source.ANNOTATIONS, Source.LIMIT_FILE, Source.PROCESS}
"""Sources that may name no container; the others' formats name one always."""


def any_statement(random):
    source = random.choice([*Source])
    process = source is Source.PROCESS
    uid = random.choice([*UIDS, *UIDS, ""] if process else UIDS)
    count = random.choice([1, 1, 2] if process else [0, 1, 1, 1, 2, 3])
    annotated = source is Source.ANNOTATIONS
    return Statement(
        source=source,
        pod=PodRef(uid, "", random.choice(["", uid])),
        container=random.choice(["main", "side", "" if source in OF_WHOLE_PODS else "main"]),
        shares=tuple(any_share(random) for _ in range(count)),
        scheme=Scheme.NONE if process else random.choice([*Scheme]),
        phase=Phase.ASSIGNED if process else random.choice([*Phase]),
        since=random.choice([None, 1.0, 2.0]),
        alive=process or (source is Source.SHIM and random.random() < 0.5),
        node=random.choice(["", "", NODE, "other"]) if annotated else "",
        slices=() if process or source in LIMITS else any_slices(random),  # they name no IDs
        where=random.choice(["", "here"]),
    )


def any_pod(random, uid):
    return pod(
        uid,
        random.choice(["Pending", "Running", "Running", "Succeeded", "Failed"]),
        random.choice([None, *ContainerState]),
        deleted_at=random.choice([None, None, 1.0]),
        containers=random.choice(CONTAINERS),
    )


def any_request(random, uid):
    request = Request(random.choice(["main", "side", ""]), 1)
    return Wanted(
        ref(uid), request, Scheme.VOLCANO, random.choice(["r/gpu", ""]), random.random() < 0.7
    )


def any_surroundings(random):
    """What is known beside the statements."""
    known = [uid for uid in UIDS if random.random() < 0.6]
    return Evidence(
        node=random.choice([NODE, NODE, ""]),
        devices=random.choice([GPUS, GPUS, GPUS[:2], ()]),
        devices_complete=random.random() < 0.6,
        lost=random.choice([frozenset(), frozenset({C}), frozenset({"GPU-gone"})]),
        pods=tuple(any_pod(random, uid) for uid in known),
        pods_complete=random.random() < 0.5,
        live_pods=random.choice([None, frozenset(u for u in UIDS if random.random() < 0.5)]),
        names=random.choice([{}, {"u3": ref("u3")}]),
        wanted=tuple(any_request(random, uid) for uid in known if random.random() < 0.5),
        read=frozenset(source for source in Source if random.random() < 0.7),
    )


# Made beforehand, so that a thousand examples are cheap to draw.
_RANDOM = Random(5)
statements = st.sampled_from([any_statement(_RANDOM) for _ in range(5000)])
surroundings = st.sampled_from([any_surroundings(_RANDOM) for _ in range(1000)])
evidences = st.builds(
    lambda around, drawn: msgspec.structs.replace(around, statements=tuple(drawn)),
    surroundings,
    st.lists(statements, max_size=8),
)
