"""The verbs of requests to the API server, a row for each, for reads and writes; pure.

A verb that a program needs is a row here.
"""

from typing import Final

import msgspec

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


class ApiVerb(msgspec.Struct, frozen=True):
    """How one kind of request is sent.

    Attributes:
        word: Kubernetes' name of the verb, in RBAC rights and in counts of requests.
        method: the HTTP method.
        subresource: the subresource; "" means the object itself.
        names_object: whether the path names one object; else it is the path of a namespace.
        content_type: the body's content type.
    """

    word: str
    method: str
    subresource: str = ""
    names_object: bool = True
    content_type: str = JSON


GET: Final = ApiVerb("get", "GET")
LIST: Final = ApiVerb("list", "GET", names_object=False)
WATCH: Final = ApiVerb("watch", "GET", names_object=False)
CREATE: Final = ApiVerb("create", "POST", names_object=False)
REPLACE: Final = ApiVerb("update", "PUT")
PATCH: Final = ApiVerb("patch", "PATCH", content_type=MERGE_PATCH)
PATCH_STATUS: Final = ApiVerb("patch", "PATCH", "status", content_type=JSON_PATCH)
MERGE_STATUS: Final = ApiVerb("patch", "PATCH", "status", content_type=MERGE_PATCH)
DELETE: Final = ApiVerb("delete", "DELETE")
EVICT: Final = ApiVerb("create", "POST", "eviction")
BIND: Final = ApiVerb("create", "POST", "binding")

VERBS: Final = (
    GET,
    LIST,
    WATCH,
    CREATE,
    REPLACE,
    PATCH,
    PATCH_STATUS,
    MERGE_STATUS,
    DELETE,
    EVICT,
    BIND,
)
"""All verbs that the programs use."""
