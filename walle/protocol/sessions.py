"""Sessions of devices over HTTP: the header that carries one, and what a device signs to get one (docs/protocol.md)."""

DEVICE_HEADER = "X-Walle-Device"

_DOMAIN = b"walle device proof 1\0"  # the device's key also signs TLS handshakes and certificate requests


def session_proof(device_id: str, challenge: str) -> bytes:
    """Return the bytes that a device signs to prove its key: the cloud's challenge, and its own id."""
    return _DOMAIN + challenge.encode("utf-8", "surrogateescape") + b"\0" + device_id.encode()
