"""Names in certificates (``subjectAltName``), as they are compared; pure."""

import ipaddress


def canonical_name(name: str) -> str:
    """An IP address in its shortest form, which is Go's; ``ssl`` writes IPv6 in full."""
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name
