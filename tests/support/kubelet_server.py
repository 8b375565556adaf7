"""A kubelet's pod-resources API on a unix socket, with the answers that a test sets."""

import random
from concurrent import futures

import grpc

from vgpu.rpc import podresources_pb2 as pb

ORDER = random.Random(1)  # not the global one, which Hypothesis watches over


class Kubelet:
    """The List call of a kubelet; ``answer`` is called for each request."""

    def __init__(self, path):
        self.path = str(path)
        self.answer = pb.ListPodResourcesResponse
        self.start()

    def start(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        handler = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.reply(context),
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
        self.server.add_generic_rpc_handlers((service,))
        self.server.add_insecure_port(f"unix:{self.path}")
        self.server.start()

    def reply(self, context):
        answer = self.answer()
        if isinstance(answer, tuple):
            context.abort(*answer)
        return answer

    def stop(self):
        self.server.stop(None).wait()


def one_entry_per_device(*held):
    """An answer as the kubelet gives it: a ContainerDevices for each device, shuffled."""
    answer = pb.ListPodResourcesResponse()
    for namespace, pod, container, resource, ids in held:
        shown = answer.pod_resources.add(name=pod, namespace=namespace).containers.add(
            name=container
        )
        for device in ORDER.sample(ids, len(ids)):
            shown.devices.add(resource_name=resource, device_ids=[device])
    return answer
