"""Keystream of ChaCha20 as arrays: masks of secure aggregation, and random words of noise.

Source: RFC 8439 (ChaCha20). A key makes one stream, with nonce zero: every key here is drawn or derived for one use.
"""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from walle import np

KEY_BYTES = 32
_NONCE = bytes(16)  # block counter, then nonce
_CHUNK_WORDS = 1 << 18  # words made at a time: memory of a mask does not grow with the model


class Keystream:
    """Random words that a key of 32 bytes determines; each call returns the next ones."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()

    def words(self, count: int, dtype: str = "uint32") -> Any:
        """Return the next `count` words as a flat array of dtype uint32 or uint64 (little endian)."""
        size = 4 if dtype == "uint32" else 8
        return np.frombuffer(self._encryptor.update(bytes(size * count)), dtype)


def add_mask(total: Any, key: bytes) -> None:
    """Add the key's mask to a flat uint32 array, in place and modulo 2**32."""
    for start, words in _chunks(total, key):
        total[start : start + words.size] += words


def subtract_mask(total: Any, key: bytes) -> None:
    """Subtract the key's mask from a flat uint32 array, in place and modulo 2**32."""
    for start, words in _chunks(total, key):
        total[start : start + words.size] -= words


def _chunks(total: Any, key: bytes) -> Any:
    stream = Keystream(key)
    for start in range(0, total.size, _CHUNK_WORDS):
        yield start, stream.words(min(_CHUNK_WORDS, total.size - start))
