"""Ed25519 public keys that prove something: canonical encodings of points of the prime-order subgroup.

RFC 8032 verification, also OpenSSL's, accepts any point of the curve as a key. For each of the eight points of small
order there are signatures that are valid for many or all messages, and a key of mixed order has up to seven other
forms. A role that listed one would count a signature that nobody made.
"""

import functools

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from walle.trust.signing import SignatureError

KEY_BYTES = 32
_P = 2**255 - 19  # modulus of the field
_D = -121665 * pow(121666, -1, _P) % _P  # parameter d of the curve: -x² + y² = 1 + d x² y²
_ORDER = 2**252 + 27742317777372353535851937790883648493  # order of the subgroup, a prime L
# Multiplication by 5L - 1, which X25519 does not clamp to another number: a multiple of 8 of 255 bits. It maps P + T,
# P in the subgroup and T of small order, to -P, whose u is that of P. So u stays the same only where T is zero.
_MINUS_ONE = X25519PrivateKey.from_private_bytes((5 * _ORDER - 1).to_bytes(KEY_BYTES, "little"))


class KeyRefusedError(SignatureError):
    """An Ed25519 public key that no role takes. `public_key` is the raw key, `reason` why."""

    def __init__(self, public_key: bytes, reason: str) -> None:
        what = f"Ed25519 public key {public_key[:KEY_BYTES].hex()}"
        super().__init__(what, f"it {reason}; a signature by it proves nothing: name another key")
        self.public_key = public_key
        self.fault = reason


def checked_key(public_key: bytes) -> Ed25519PublicKey:
    """Return the key of 32 raw bytes.

    Raises:
        KeyRefusedError: they are not the one encoding of a point of the curve, or the point is of small or mixed order.
    """
    reason = _fault(public_key)
    if reason:
        raise KeyRefusedError(public_key, reason)
    return Ed25519PublicKey.from_public_bytes(public_key)


@functools.lru_cache(maxsize=1024)
def _fault(public_key: bytes) -> str:
    """Return why a key is refused, or an empty text."""
    if len(public_key) != KEY_BYTES:
        return f"has {len(public_key)} bytes, an Ed25519 key has {KEY_BYTES}"
    number = int.from_bytes(public_key, "little")
    y, is_odd = number & (2**255 - 1), number >> 255
    if y >= _P:
        return "is not the canonical encoding of a point (RFC 8032, 5.1.3: y is below 2**255 - 19)"
    if y in (1, _P - 1):  # x is 0: the points of orders 1 and 2
        return "is a point of small order" if not is_odd else "is not the canonical encoding of a point (x is 0)"
    x_squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    if pow(x_squared, (_P - 1) // 2, _P) != 1:
        return "is not a point of the curve"
    u = (1 + y) * pow(1 - y, -1, _P) % _P
    try:
        mapped = _MINUS_ONE.exchange(X25519PublicKey.from_public_bytes(u.to_bytes(KEY_BYTES, "little")))
    except ValueError:  # all zero: 8 times the point is the identity
        return "is a point of small order"
    return (
        "" if int.from_bytes(mapped, "little") == u else "is a point of mixed order, outside the prime-order subgroup"
    )
