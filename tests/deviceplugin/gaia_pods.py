"""Six GPUs, as in gpu-manager's own tests, and pods that ask for parts of them.

pod = asking((50, 30), indices=["0"])
"""

from itertools import combinations

from deviceplugin.adapters.gaia import GaiaAdapter
from tests.support.plugin_pods import NODE, container, gpu, pod
from tests.support.topologies import TOPO6
from vgpu.model.topology import parse_matrix

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
INDEX, ASSIGNED = "tencent.com/predicate-gpu-idx-", "tencent.com/gpu-assigned"
PREDICATE_NODE, PREDICATE_TIME = "tencent.com/predicate-node", "tencent.com/predicate-time"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
AT = 1_700_000_000_000_000_000

SIX = tuple(f"GPU-{at}" for at in range(6))
LEVELS = parse_matrix(TOPO6)
LINKS = {(SIX[one], SIX[two]): LEVELS[one][two].value for one, two in combinations(range(6), 2)}
GPUS = tuple(gpu(uuid, at, mebibytes=16_384, minor=str(at)) for at, uuid in enumerate(SIX))
ROLE = GaiaAdapter(links=LINKS)
DEVICES = ROLE.devices(GPUS)


def wants(cores, blocks=0, name="main", **fields):
    asked = {CORE: cores, MEMORY: blocks}
    return container(
        name, {resource: units for resource, units in asked.items() if units}, **fields
    )


def promised(*indices, **changes):
    """What gpu-admission writes."""
    written = {
        PREDICATE_NODE: NODE,
        PREDICATE_TIME: str(AT),
        ASSIGNED: "false",
        **{f"{INDEX}{at}": text for at, text in enumerate(indices) if text is not None},
    } | changes
    return {key: text for key, text in written.items() if text is not None}


def asking(*sizes, indices=(), name="train", annotations=None, **fields):
    """A pod with a container c0, c1 … for each (cores, blocks)."""
    containers = [wants(*size, name=f"c{at}") for at, size in enumerate(sizes)]
    own = promised(*indices) if indices else {}
    return pod(own | (annotations or {}), *containers, name=name, **fields)
