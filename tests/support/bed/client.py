"""A small client of the API server: JSON in, JSON out, every refusal a typed error.

    pod = client.create(objects.pod("web", namespace))
    client.wait_for(pod, running, "Running")
    client.evict(pod, uid=pod["metadata"]["uid"])

Objects are plain dictionaries. What is asked for is named by its path
(``/api/v1/namespaces/default/pods/web``) or by an object that has kind, apiVersion and name; what
the path of a kind is, the API server reports.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from tests.support.bed.pki import KeyPair
from tests.support.waiting import WAIT_SECONDS, wait_until

Object = dict[str, Any]
Objects = list[Object]

PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The API server's answer 400 or above, in the fields of its Status."""

    def __init__(self, request: str, status: int, body: bytes) -> None:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {}
        if not isinstance(answer, dict):
            answer = {}
        self.status = status
        self.reason = answer.get("reason", "")
        self.message = answer.get("message", body.decode(errors="replace").strip())
        self.details = answer.get("details", {})
        super().__init__(f"{request}: {status} {self.reason}: {self.message}")


class Client:
    """One identity at one API server. Safe to use from several threads."""

    def __init__(
        self,
        user: str,
        server: str,
        authority: Path,
        kubeconfig: Path,
        *,
        certificate: KeyPair | None = None,
        token: str = "",
    ) -> None:
        """``user`` is the name that the API server has for it.

        Also writes ``kubeconfig``, for programs to be the same identity.
        """
        self.user, self.server, self.kubeconfig = user, server, kubeconfig
        credentials = {"token": token}
        identity: dict[str, Any] = {}
        self._headers = {"Accept": "application/json"}
        if certificate:
            identity = {"cert_file": certificate.certificate, "key_file": certificate.key}
            credentials = {
                "client-certificate": str(certificate.certificate),
                "client-key": str(certificate.key),
            }
        else:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http = urllib3.connection_from_url(
            server, ca_certs=str(authority), maxsize=16, retries=False, **identity
        )
        self._paths: dict[tuple[str, str], tuple[str, bool]] = {}
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(_kubeconfig(server, authority, credentials)))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    # ---------------------------------------------------------------------------- requests

    def raw(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> urllib3.BaseHTTPResponse:
        """One request; ``query`` are its parameters, those that are None left out.

        Raises:
            Refused: the answer is an error.
            urllib3.exceptions.HTTPError: there is none.
        """
        fields = {name: str(value) for name, value in query.items() if value is not None}
        answer = self._http.urlopen(
            method,
            f"{path}?{urlencode(fields)}" if fields else path,
            body=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, "Content-Type": content_type, **(headers or {})},
            timeout=urllib3.Timeout(connect=5, read=WAIT_SECONDS),
            preload_content=not stream,
        )
        if answer.status >= 400:
            raise Refused(f"{method} {path}", answer.status, answer.read() or answer.data)
        return answer

    def get(self, ref: str | Object, subresource: str = "", **query: object) -> Object:
        """The object as it is now."""
        return self.raw("GET", self.path(ref, subresource), **query).json()

    def find(self, ref: str | Object) -> Object | None:
        """The object as it is now; None when there is none, or another of its name."""
        try:
            found = self.get(ref)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        uid = "" if isinstance(ref, str) else ref["metadata"].get("uid")
        return None if uid and uid != found["metadata"]["uid"] else found

    def list(self, path: str, **query: object) -> Objects:
        """The objects below a path, each with its kind and apiVersion."""
        answer = self.raw("GET", path, **query).json()
        about = {
            "kind": answer["kind"].removesuffix("List"),
            "apiVersion": answer["apiVersion"],
        }
        return [{**about, **item} for item in answer["items"]]

    def create(self, obj: Object, subresource: str = "", **query: object) -> Object:
        """Create it, or with ``subresource`` post it below the object of its name."""
        path = self.path(obj, subresource) if subresource else self._collection(obj)
        return self.raw("POST", path, obj, **query).json()

    def replace(self, obj: Object, subresource: str = "", **query: object) -> Object:
        """Replace all of it; its resourceVersion, if it has one, must be the newest."""
        return self.raw("PUT", self.path(obj, subresource), obj, **query).json()

    def patch(
        self,
        ref: str | Object,
        body: object,
        subresource: str = "",
        *,
        kind: str = "merge",
        **query: object,
    ) -> Object:
        """Change a part; ``kind`` is one of PATCHES."""
        path = self.path(ref, subresource)
        return self.raw("PATCH", path, body, PATCHES[kind], **query).json()

    def apply(self, obj: Object, manager: str = "test-bed") -> Object:
        """Create it or make it so (server-side apply)."""
        return self.patch(obj, obj, kind="apply", fieldManager=manager, force="true")

    def delete(
        self,
        ref: str | Object,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: str | None = None,
    ) -> Object:
        """Delete it if the preconditions hold."""
        options = _delete_options(uid, resource_version, grace_seconds)
        if propagation:
            options["propagationPolicy"] = propagation
        return self.raw("DELETE", self.path(ref), options).json()

    def evict(
        self,
        pod: str | Object,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> Object:
        """Evict a pod if the preconditions hold and no disruption budget refuses (429)."""
        *_, namespace, _, name = (path := self.path(pod)).split("/")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, resource_version, grace_seconds),
        }
        return self.raw("POST", f"{path}/eviction", eviction).json()

    def watch(self, path: str, **query: object) -> Iterator[tuple[str, Object]]:
        """(type, object) of what happens from now on, until the answer ends."""
        return _events(self.raw("GET", path, stream=True, watch="true", **query))

    def logs(self, pod: str | Object, container: str | None = None, **query: object) -> str:
        """What a container has printed, by way of its kubelet."""
        answer = self.raw("GET", self.path(pod, "log"), container=container, **query)
        return answer.data.decode(errors="replace")

    def may(self, verb: str, resource: str, group: str = "", **more: str) -> bool:
        """Whether this identity has a right; ``more`` are fields of resourceAttributes."""
        attributes = {"verb": verb, "resource": resource, "group": group, **more}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return self.create(review)["status"]["allowed"]

    # ---------------------------------------------------------------------------- conditions

    def wait_for(
        self,
        ref: str | Object,
        condition: Callable[[Object], object],
        what: str,
        *,
        seconds: float = WAIT_SECONDS,
    ) -> Object:
        """The object as soon as the condition holds for it.

        Raises:
            AssertionError: never; with the object's last status, and its events.
        """
        last: Object = {}

        def holds() -> bool:
            nonlocal last
            last = self.get(ref)
            return bool(condition(last))

        def seen() -> str:
            lines = [json.dumps(last.get("status", last), indent=1)]
            with suppress(Refused):  # not everybody may read events
                lines += [_event_line(event) for event in self.events(last)]
            return "\n".join(lines)

        name = ref if isinstance(ref, str) else f"{ref['kind']} {ref['metadata']['name']}"
        failures = (Refused, urllib3.exceptions.HTTPError)
        wait_until(holds, f"{name}: {what}", seconds=seconds, failures=failures, context=seen)
        return last

    def wait_gone(self, ref: str | Object, *, seconds: float = WAIT_SECONDS) -> None:
        """Until it is deleted; an object of the same name with another uid is another."""
        name = ref if isinstance(ref, str) else f"{ref['kind']} {ref['metadata']['name']}"
        wait_until(
            lambda: self.find(ref) is None,
            f"{name}: deleted",
            seconds=seconds,
            failures=(Refused, urllib3.exceptions.HTTPError),
            context=lambda: json.dumps(self.find(ref), indent=1),
        )

    def events(self, obj: Object) -> Objects:
        """The events of an object."""
        uid = obj.get("metadata", {}).get("uid")
        return self.list("/api/v1/events", fieldSelector=f"involvedObject.uid={uid}") if uid else []

    # ---------------------------------------------------------------------------- paths

    def path(self, ref: str | Object, subresource: str = "") -> str:
        """Where an object is."""
        path = ref if isinstance(ref, str) else f"{self._collection(ref)}/{_name(ref)}"
        return f"{path}/{subresource}" if subresource else path

    def _collection(self, obj: Object) -> str:
        version = obj["apiVersion"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        plural, namespaced = self._resource(group, obj["kind"])
        if not namespaced:
            return f"{group}/{plural}"
        return f"{group}/namespaces/{obj['metadata'].get('namespace', 'default')}/{plural}"

    def _resource(self, group: str, kind: str) -> tuple[str, bool]:
        if (group, kind) not in self._paths:
            for resource in self.raw("GET", group).json()["resources"]:
                if "/" not in resource["name"]:
                    found = resource["name"], resource["namespaced"]
                    self._paths[group, resource["kind"]] = found
        return self._paths[group, kind]


def _events(answer: urllib3.BaseHTTPResponse) -> Iterator[tuple[str, Object]]:
    with closing(answer):
        for line in answer:
            event = json.loads(line)
            yield event["type"], event["object"]


def _name(obj: Object) -> str:
    return obj["metadata"]["name"]


def _event_line(event: Object) -> str:
    return f"  {event.get('type')} {event.get('reason')}: {event.get('message')}"


def _delete_options(
    uid: str | None, resource_version: str | None, grace_seconds: int | None
) -> Object:
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    preconditions = {name: value for name, value in preconditions.items() if value is not None}
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if preconditions:
        options["preconditions"] = preconditions
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return options


def _kubeconfig(server: str, authority: Path, credentials: Mapping[str, str]) -> Object:
    cluster = {"server": server, "certificate-authority": str(authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": "user", "user": credentials}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "user"}}],
        "current-context": "bed",
    }
