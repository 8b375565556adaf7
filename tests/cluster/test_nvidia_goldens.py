"""The golden checkpoints of NVIDIA's plugin are what a real kubelet writes beside the stand-in.

With VGPU_WRITE_GOLDENS=1 the files are written again. A pod's UID is random, which IDs the kubelet
takes is open, and so is the order of an answer's variables. The rest must be equal, and each answer
must be the stand-in's to the IDs beside it.
"""

import json
import os
from functools import partial

import pytest

from tests.support.bed import objects
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.environment import GOLDEN_FILES
from tests.support.nvidia_plugin import CASES
from tests.support.waiting import wait_until
from vgpu.sources.kubelet import DEFAULT_CHECKPOINT
from vgpu.sources.kubelet_checkpoint import parse_checkpoint, registered_replicas

pytestmark = [pytest.mark.slow, pytest.mark.thorough("plugin")]

FOLDER = GOLDEN_FILES / "nvidia-plugin"


def recorded(node, control_plane, namespace, case):
    """The checkpoint of the node's kubelet, once it has all pods of the case."""
    path = node.path(DEFAULT_CHECKPOINT)
    uids = set()
    for turn, plugin in enumerate(case.plugins):
        with DevicePlugin(node, case.resource, plugin.ids, plugin.answer) as serving:
            serving.wait_counted(len(plugin.ids))
            for number in plugin.requests:
                pod = objects.pod(
                    f"pod-{turn}-{number}",
                    namespace,
                    limits={case.resource: number},
                    nodeName=node.name,
                )
                uids.add(control_plane.client.create(pod)["metadata"]["uid"])

            whole = partial(is_whole, path, frozenset(uids), plugin.ids)
            wait_until(whole, "the checkpoint has the pods and the devices")
            content = path.read_bytes()
    return content


def is_whole(path, uids, ids):
    """Whether the kubelet has written the pods' entries, and what is registered."""
    content = path.read_bytes()
    grants, _ = parse_checkpoint(content)
    registered = json.loads(content)["Data"]["RegisteredDevices"]
    return uids <= {grant.pod_uid for grant in grants} and any(
        sorted(listed) == sorted(ids) for listed in registered.values()
    )


def shape(content):
    """What does not change from run to run."""
    data = json.loads(content)["Data"]
    grants, rejections = parse_checkpoint(content)
    return (
        {name: sorted(ids) for name, ids in data["RegisteredDevices"].items()},
        sorted(
            (
                grant.container,
                grant.resource,
                len(grant.device_ids),
                sorted(grant.env),
            )
            for grant in grants
        ),
        registered_replicas(content),
        rejections,
        {len(entry) for entry in data["PodDeviceEntries"]},
    )


def in_any_order(env):
    return {name: sorted(value.split(",")) for name, value in env.items()}


def check_answers(content, case):
    """Each entry has what the stand-in answers to its IDs."""
    grants, _ = parse_checkpoint(content)
    for grant in grants:
        (plugin,) = [one for one in case.plugins if set(grant.device_ids) <= set(one.ids)]
        expected = plugin.answer(grant.device_ids).envs
        assert in_any_order(grant.env) == in_any_order(expected)


@pytest.mark.parametrize("name", CASES)
def test_a_kubelet_writes_what_is_stored(nodes, control_plane, namespace, name):
    content = recorded(nodes(), control_plane, namespace, CASES[name])
    path = FOLDER / f"{name}.json"
    if os.environ.get("VGPU_WRITE_GOLDENS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_bytes(content)
    assert shape(content) == shape(path.read_bytes())
    for each in (content, path.read_bytes()):
        check_answers(each, CASES[name])
