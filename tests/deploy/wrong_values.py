"""Values that the chart's schema refuses: by the schema alone, and by the real helm."""

from typing import NamedTuple

from tests.support.deploy_objects import Object


class Wrong(NamedTuple):
    """Values, the place in them that is refused, and the message about it, if that is sure."""

    place: str
    values: Object
    message: str = ""


WRONG = (
    Wrong("", {"exportr": {}}, "'exportr'"),
    Wrong("/exporter", {"exporter": {"profil": "full"}}, "'profil'"),
    Wrong("/exporter/profile", {"exporter": {"profile": "root"}}, "'minimal', 'standard', 'full'"),
    Wrong("/exporter/enabled", {"exporter": {"enabled": "yes"}}),
    Wrong("/exporter/sampleInterval", {"exporter": {"sampleInterval": 15}}),
    Wrong(
        "/exporter/resources/limits",
        {"exporter": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
        "'nvidia.com/gpu'",
    ),
    Wrong("/exporter/extraArgs/0", {"exporter": {"extraArgs": ["collector.api"]}}),
    Wrong(
        "/exporter/updateStrategy/rollingUpdate",
        {"exporter": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}},
        "'maxSurge'",
    ),
    Wrong(
        "/exporter/updateStrategy/rollingUpdate/maxUnavailable",
        {"exporter": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}},
    ),
    Wrong("/image/digest", {"image": {"digest": "sha256:1"}}),
    Wrong("/image/repository", {"image": {"repository": "registry.example.com:5000/vgpu:1"}}),
    Wrong("/gpuNodes/nodeSelector/gpu", {"gpuNodes": {"nodeSelector": {"gpu": True}}}),
    Wrong(
        "/gpuNodes/tolerations/0/effect",
        {"gpuNodes": {"tolerations": [{"key": "a", "effect": "No"}]}},
    ),
    Wrong("/units/volcanoMemoryFactor", {"units": {"volcanoMemoryFactor": "auto"}}),
    Wrong("/units/volcanoMemoryFactor", {"units": {"volcanoMemoryFactor": 0}}),
    Wrong("/units/gpushareMemoryUnit", {"units": {"gpushareMemoryUnit": "GB"}}),
    Wrong("/paths/kubelet", {"paths": {"kubelet": "var/lib"}}),
    Wrong(
        "/devicePlugin/schemes",
        {"devicePlugin": {"schemes": {"hami": {"enabled": True}}}},
        "'hami'",
    ),
    Wrong("/reconciler/kind", {"reconciler": {"kind": "Job"}}, "'Deployment', 'CronJob', 'None'"),
    Wrong("/reconciler/config/every", {"reconciler": {"config": {"every": "2 minutes"}}}),
    Wrong("/reconciler/config/cron", {"reconciler": {"config": {"cron": "61 * * * *"}}}),
    Wrong(
        "/reconciler/config/limits",
        {"reconciler": {"config": {"limits": {"per_nod": 1}}}},
        "'per_nod'",
    ),
    Wrong(
        "/reconciler/config/limits/per_node",
        {"reconciler": {"config": {"limits": {"per_node": -1}}}},
    ),
    Wrong(
        "/reconciler/config/rules/refused/mode",
        {"reconciler": {"config": {"rules": {"refused": {"mode": "on"}}}}},
    ),
    Wrong("/reconciler/node/config", {"reconciler": {"node": {"config": "every: 2m"}}}),
    Wrong("/reconciler/schedule", {"reconciler": {"schedule": "*/2 * * *"}}),
    Wrong("/reconciler/serviceAccount/name", {"reconciler": {"serviceAccount": {"create": False}}}),
    Wrong(
        "/exporter/resources/requests/cpu", {"exporter": {"resources": {"requests": {"cpu": -1}}}}
    ),
    Wrong(
        "/exporter/securityContext",
        {"exporter": {"securityContext": {"privilegd": True}}},
        "'privilegd'",
    ),
    Wrong("/fleet/prometheus", {"fleet": {"prometheus": "prometheus:9090"}}),
    Wrong("/fleet/teamKey", {"fleet": {"teamKey": "team --open"}}),
    Wrong("/fleet", {"fleet": {"replicas": 2}}, "'replicas'"),
    Wrong("/bill/prometheus", {"bill": {"prometheus": "prometheus:9090"}}),
    Wrong("/bill/timezone", {"bill": {"timezone": "Europe/Berlin --allow-empty"}}),
    Wrong("/bill/volume/size", {"bill": {"volume": {"size": "much"}}}),
    Wrong("/bill", {"bill": {"mode": "apply"}}, "'mode'"),
    Wrong("/scheduler/gpuPolicy", {"scheduler": {"gpuPolicy": "mutex"}}, "'', 'binpack', 'spread'"),
    Wrong("/scheduler/policies", {"scheduler": {"policies": {"deny": True}}}, "'deny'"),
    Wrong("/scheduler/replicas", {"scheduler": {"replicas": -1}}),
    Wrong("/scheduler/service/clusterIP", {"scheduler": {"service": {"clusterIP": "vgpu.svc"}}}),
    Wrong("/kubeshare/placement", {"kubeshare": {"placement": "release-1"}}, "'kubeshare-1'"),
    Wrong("/kubeshare/pool", {"kubeshare": {"pool": {"keep_idle": 1}}}, "'keep_idle'"),
    Wrong("/kubeshare/pool/idleTtl", {"kubeshare": {"pool": {"idleTtl": 600}}}),
    Wrong("/kubeshare/controller/replicas", {"kubeshare": {"controller": {"replicas": 1.5}}}),
    Wrong("/paths/shims", {"paths": {"shims": "usr/local"}}),
    Wrong("/monitoring/kind", {"monitoring": {"kind": "podmonitor"}}),
    Wrong("/monitoring/alerts/0", {"monitoring": {"alerts": [1]}}),
    Wrong(
        "/rules/alerts/VgpuDataStale/severity",
        {"rules": {"alerts": {"VgpuDataStale": {"severity": "page"}}}},
    ),
    Wrong("/rules/runbooks", {"rules": {"runbooks": "docs/runbooks"}}),
    Wrong("/rules/runbooks", {"rules": {"runbooks": "https://example.com/runbooks/"}}),
    Wrong("/networkPolicy/apiServerPorts/0", {"networkPolicy": {"apiServerPorts": [70000]}}),
)


def merged(below: Object, above: Object) -> Object:
    """Values over others, as helm lays them."""
    both = {
        name: merged(below[name], value)
        for name, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(name), dict)
    }
    return below | above | both
