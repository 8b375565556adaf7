"""How certificates of API servers are verified, whatever the Python."""

import ssl

import pytest
import urllib3

from vgpu.kube.tls import without_strict_extensions


@pytest.mark.parametrize("required", [True, False])
def test_extensions_that_many_authorities_lack_are_not_demanded(required):
    mode = ssl.CERT_REQUIRED if required else ssl.CERT_NONE
    pool = without_strict_extensions(urllib3.PoolManager(cert_reqs=mode))
    context = pool.connection_pool_kw["ssl_context"]
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (mode, required)


def test_the_strict_flag_goes_where_the_library_sets_it(monkeypatch):
    def strict(**_):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr("vgpu.kube.tls.create_urllib3_context", strict)
    pool = without_strict_extensions(urllib3.PoolManager(cert_reqs="CERT_REQUIRED"))
    assert not pool.connection_pool_kw["ssl_context"].verify_flags & ssl.VERIFY_X509_STRICT
