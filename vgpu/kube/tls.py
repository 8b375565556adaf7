"""TLS to the API server: certificates are verified, by the rules of Kubernetes' own tools.

Python 3.13, and urllib3 with it, also demand extensions such as the authority key identifier
(``VERIFY_X509_STRICT``). Authorities of many clusters do not have them, and kubectl does not demand
them.
"""

import ssl

import urllib3
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs


def without_strict_extensions(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """The pool, whose connections verify as kubectl does; its other settings stay."""
    settings = pool.connection_pool_kw
    context = create_urllib3_context(cert_reqs=resolve_cert_reqs(settings.get("cert_reqs")))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not settings.get("ca_certs"):
        context.load_default_certs()
    settings["ssl_context"] = context
    return pool
