"""What the original plugins write on a node about its GPUs: HAMi's and Volcano's registers."""

import json

HAMI = "hami.io/node-nvidia-register"
VOLCANO = "volcano.sh/node-vgpu-register"


def hami_gpu(uuid, index=0, *, split=10, mib=16384, model="NVIDIA-Tesla T4", **changes):
    """A GPU of HAMi's register in JSON, as our plugin writes it.

    With ``plugin=None`` it is as HAMi's own plugin writes it.
    """
    gpu = {
        "id": uuid,
        "index": index,
        "count": split,
        "devmem": mib,
        "devcore": 100,
        "type": model,
        "mode": "hami-core",
        "health": True,
        "plugin": "vgpu",
        **changes,
    }
    return {key: value for key, value in gpu.items() if value is not None}


def hami_register(*uuids, **changes):
    """HAMi's annotation of a node with these GPUs, which are alike."""
    gpus = [hami_gpu(uuid, index, **changes) for index, uuid in enumerate(uuids)]
    return {HAMI: json.dumps(gpus)}


def hami_text(uuid, index=0, *, mib=16384, cores=100, model="NVIDIA-Tesla T4"):
    """A GPU of HAMi's register as text, which older plugins write."""
    return f"{uuid},10,{mib},{cores},{model},0,true,{index},hami-core:"


def volcano_register(*uuids, split=10, amount=16384, model="NVIDIA-Tesla T4"):
    """Volcano's annotation of a node with these GPUs; ``amount`` is in the plugin's unit."""
    gpus = (f"{uuid},{split},{amount},{model},true,hami-core:" for uuid in uuids)
    return {VOLCANO: "".join(gpus)}
