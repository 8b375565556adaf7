"""An extender that decides nothing: what kube-scheduler, HTTP and one Binding for each pod cost.

    python benchmarks/null_extender.py KUBECONFIG [--rejects]

It answers in the same JSON as ``vgpu scheduler``, by the same web server, and binds by the same
client with one write: it has every node's name in filter and a score for each in prioritize. With
``--rejects`` it refuses every node. ``/metrics`` has the number of its answers to filter, under the
name that ours has. The process prints its port and lives until its standard input ends.
"""

import argparse
import itertools
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import msgspec  # noqa: E402

from scheduler.main import API_CONNECTIONS, CONNECTIONS, REQUESTS  # noqa: E402
from scheduler.verbs.wire import (  # noqa: E402
    FilterAnswer,
    read_binding,
    write_error,
    write_filter,
    write_scores,
)
from vgpu.apiserver import bodies  # noqa: E402
from vgpu.kube.kinds import PODS  # noqa: E402
from vgpu.kube.verbs import BIND  # noqa: E402
from vgpu.model.names import PodRef  # noqa: E402
from vgpu.program.kube_flags import connected  # noqa: E402
from vgpu.web.message import HttpResponse  # noqa: E402
from vgpu.web.routes import Route  # noqa: E402
from vgpu.web.server import WebServer  # noqa: E402

NO_ROOM = "no GPU has enough free memory"
MOST_BODY = 32 * 2**20


class Names(msgspec.Struct, rename="pascal"):
    """All that this extender reads of a request for nodes."""

    node_names: list[str]


def verbs(api, rejects):
    """The bodies of answers, by path."""
    decoder = msgspec.json.Decoder(Names)
    filtered = itertools.count(1)
    answers = {"filter": 0}

    def find_nodes(body):
        names = decoder.decode(body).node_names
        answers["filter"] = next(filtered)
        if rejects:
            return write_filter(FilterAnswer(failed=dict.fromkeys(names, NO_ROOM)))
        return write_filter(FilterAnswer(tuple(names)))

    def prioritize(body):
        names = decoder.decode(body).node_names
        return write_scores(names, (0,) * len(names))

    def bind(body):
        sent = read_binding(body)
        ref = PodRef(sent.pod_uid, sent.pod_namespace, sent.pod_name)
        binding = bodies.binding(ref, "", sent.node, {})
        del binding["metadata"]["resourceVersion"]
        api.send(BIND, PODS, ref.namespace, ref.name, binding)
        return write_error("")

    def metrics(_):
        return f'vgpu_extender_requests_total{{verb="filter"}} {answers["filter"]}\n'.encode()

    return {"/filter": find_nodes, "/prioritize": prioritize, "/bind": bind, "/metrics": metrics}


def serve(kubeconfig, rejects):
    """Answer until standard input ends."""

    def route(answer):
        content = (("Content-Type", "application/json"),)
        return Route(
            lambda request: HttpResponse(200, content, answer(request.body)),
            ("GET", "POST"),
            MOST_BODY,
        )

    with connected(kubeconfig, "", None, waits=True, connections=API_CONNECTIONS) as api:
        server = WebServer(
            {path: route(answer) for path, answer in verbs(api, rejects).items()},
            ["127.0.0.1:0"],
            max_requests=REQUESTS,
            max_bodies=REQUESTS,
            max_connections=CONNECTIONS,
            max_per_address=CONNECTIONS,
        )
        server.start()
        print(server.addresses[0].rpartition(":")[2], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig")
    parser.add_argument("--rejects", action="store_true")
    args = parser.parse_args()
    serve(args.kubeconfig, args.rejects)
