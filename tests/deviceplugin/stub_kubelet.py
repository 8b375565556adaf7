"""A kubelet's side of the device-plugin API: a stub, with a real gRPC server and real clients.

    with StubKubelet(folder) as kubelet:
        kubelet.allocate("volcano.sh/vgpu-number", ["a"])
        kubelet.restart()

It registers, connects and forgets plugins as the kubelet's own code does (kubernetes
``pkg/kubelet/cm/devicemanager``, plugin/v1beta1), of one of two generations:

* until 1.36 it knows one connection for each resource, and when any ends, the one that it knows by
  then is closed;
* 1.37 knows one for each socket. It refuses a socket that it is connected to ("device plugin
  already connected"), and forgets the connection it has in doing so: the end of that is never
  noticed, and the socket's name is refused for ever.
"""

import threading
from concurrent import futures
from pathlib import Path

import grpc

from tests.support.waiting import WAIT_SECONDS
from vgpu.rpc import deviceplugin_pb2 as pb

SERVICE = "/v1beta1.DevicePlugin/"
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class Plugin:
    """A plugin's service, as the kubelet calls it."""

    def __init__(self, path):
        self.path = str(path)
        self.channel = grpc.insecure_channel(f"unix:{path}", options=OPTIONS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def options(self):
        """Waits for the connection, as the kubelet's dial does.

        ``grpc.channel_ready_future`` leaves a thread that fails if the channel is closed soon.
        """
        method = "GetDevicePluginOptions"
        return self._unary(method, pb.Empty(), pb.DevicePluginOptions, waits=True)

    def allocate(self, *containers):
        asked = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        request = pb.AllocateRequest(container_requests=asked)
        return list(self._unary("Allocate", request, pb.AllocateResponse).container_responses)

    def prestart(self, ids):
        request = pb.PreStartContainerRequest(devices_ids=ids)
        return self._unary("PreStartContainer", request, pb.PreStartContainerResponse)

    def prefer(self):
        request = pb.PreferredAllocationRequest()
        return self._unary("GetPreferredAllocation", request, pb.PreferredAllocationResponse)

    def lists(self, seconds=None):
        """ListAndWatch: an iterator of messages that can be cancelled; ends after ``seconds``."""
        call = self.channel.unary_stream(
            SERVICE + "ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )
        return call(pb.Empty(), timeout=seconds)

    def raw(self, method, request):
        return self.channel.unary_unary(SERVICE + method)(request, timeout=WAIT_SECONDS)

    def _unary(self, method, request, answer, *, waits=False):
        call = self.channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=WAIT_SECONDS, wait_for_ready=waits)


class Connection:
    """One that a registration made."""

    def __init__(self, resource, path):
        self.resource, self.path = resource, path
        self.plugin = Plugin(path)


class StubKubelet:
    """Serves ``kubelet.sock`` in the folder. Start, stop and restart it."""

    def __init__(self, folder, *, per_socket=True):
        """``per_socket`` is 1.37's way."""
        self.folder = Path(folder)
        self.per_socket = per_socket
        self.attempts = []
        """Every Register: (resource, socket name), in order."""
        self.refuse = lambda request: None
        """A Register's (status, text), to refuse it with."""
        self.reads_lists = True
        self._lock = threading.RLock()
        self._readers = []
        self._server = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    # ------------------------------------------------------------ life

    def start(self):
        """As a kubelet does: remove all sockets, know nobody, serve."""
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)
        self._known = []  # connections whose end would be noticed
        self._held = set()  # (resource, socket): taken for connected
        self.devices = {}
        """Resource -> {ID: health}, as last reported; all unhealthy where no plugin reports."""
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        service = grpc.method_handlers_generic_handler(
            "v1beta1.Registration", {"Register": handler}
        )
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self):
        if self._server:
            self._server.stop(None).wait()
            self._server = None
            with self._lock:
                known, self._known = self._known, []
            for connection in known:
                connection.plugin.channel.close()

    def restart(self):
        self.stop()
        self.start()

    def notice_ended(self):
        """Wait until it has noticed the end of all plugins, which have ended."""
        for reader in self._readers:
            reader.join(WAIT_SECONDS)
            assert not reader.is_alive()

    # ------------------------------------------------------------ what it asks of plugins

    def allocate(self, resource, ids):
        (answer,) = self.plugin(resource).allocate(ids)
        return answer

    def prestart(self, resource, ids):
        return self.plugin(resource).prestart(ids)

    def plugin(self, resource):
        """The one that was registered last."""
        with self._lock:
            return [each for each in self._known if each.resource == resource][-1].plugin

    def healthy(self, resource):
        """The IDs that may be allocated."""
        health_by_id = self.devices.get(resource, {})
        return {device for device, health in health_by_id.items() if health == "Healthy"}

    # ------------------------------------------------------------ registration

    def _register(self, request, context):
        self.attempts.append((request.resource_name, request.endpoint))
        refused = self.refuse(request)
        if refused:
            context.abort(*refused)
        connection = Connection(request.resource_name, self.folder / request.endpoint)
        with self._lock:
            if not self.per_socket:
                self._forget(lambda each: each.resource == connection.resource)
            self._known.append(connection)
        try:
            self._connect(connection)
        except (grpc.RpcError, ValueError) as error:
            with self._lock:
                self._forget(lambda each: self._same(each, connection))
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        reader = threading.Thread(target=self._run, args=(connection, self._server), daemon=True)
        self._readers.append(reader)
        reader.start()
        return pb.Empty()

    def _connect(self, connection):
        connection.options = connection.plugin.options()
        with self._lock:
            key = connection.resource, connection.path
            if self.per_socket and key in self._held:
                raise ValueError(f"device plugin already connected: {connection.path}")
            self._held.add(key)

    def _run(self, connection, server):
        try:
            for message in connection.plugin.lists() if self.reads_lists else ():
                health_by_id = {device.ID: device.health for device in message.devices}
                self.devices[connection.resource] = health_by_id
        except (grpc.RpcError, ValueError):  # a channel that is closed is a ValueError
            pass
        if not self.reads_lists:
            return
        with self._lock:
            ended = [each for each in self._known if self._same(each, connection)]
            if not ended or self._server is not server:  # of a kubelet that has gone
                return
            self._forget(lambda each: each in ended)
            self._held -= {(each.resource, each.path) for each in ended}
            health_by_id = self.devices.get(connection.resource, {})
            self.devices[connection.resource] = dict.fromkeys(health_by_id, "Unhealthy")
        for each in ended:
            each.plugin.channel.close()

    def _same(self, one, other):
        """Whether this generation takes one for the other."""
        if not self.per_socket:
            return one.resource == other.resource
        return (one.resource, one.path) == (other.resource, other.path)

    def _forget(self, whom):
        self._known = [each for each in self._known if not whom(each)]
