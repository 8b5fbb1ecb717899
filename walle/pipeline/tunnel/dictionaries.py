"""zstd dictionaries of the tunnel (§5.2): trained on a task's features, named by the SHA-256 of their bytes.

A small feature compresses badly alone: zstd knows nothing at its beginning. A dictionary is what it knows there. Both
sides must have the same bytes, so a dictionary's id is their hash, and a frame's body names one that both sides have
agreed on in Hello and Welcome.
"""

import collections
import functools
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import zstandard

from walle.errors import ConfigError
from walle.protocol import DICTIONARY_MARK, MAX_DICTIONARY_BYTES

_LOG = logging.getLogger(__name__)

DICTIONARY_BYTES = 16 << 10  # size of a trained dictionary, unless another size is asked for
MIN_SAMPLES = 50  # zstd's training refuses far fewer, and overfits a few more
_LEVEL = 1  # bodies are small: 3 takes 1.4 times as long for 4 % fewer bytes (ADR 20)
_TRAINING_BYTES = 8 << 20  # limit of the samples: more do not change the result

type DictionaryLookup = Callable[[str], Awaitable[bytes | None]]
"""Returns the bytes of the file with a SHA-256 digest, None if there is none."""


class DictionaryError(ConfigError):
    """Bytes that are not a zstd dictionary, or samples from which none can be trained."""


class Dictionary:
    """One dictionary, with its id and its contexts for one thread.

    Raises:
        DictionaryError: the bytes are not a trained zstd dictionary, or too many.
    """

    def __init__(self, data: bytes) -> None:
        if not data.startswith(DICTIONARY_MARK):
            raise DictionaryError("not a zstd dictionary: it does not begin with zstd's mark; train one")
        if len(data) > MAX_DICTIONARY_BYTES:
            raise DictionaryError(f"a dictionary of {len(data)} bytes; at most {MAX_DICTIONARY_BYTES} are accepted")
        self.digest = hashlib.sha256(data).hexdigest()
        self._data = zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_FULLDICT)
        try:
            self._data.precompute_compress(level=_LEVEL)
        except zstandard.ZstdError as error:
            raise DictionaryError(f"not a zstd dictionary: {error}") from error

    @functools.cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        # The frame's header names the dictionary; zstd's own 4 bytes of it would say it twice.
        return zstandard.ZstdCompressor(
            level=_LEVEL, dict_data=self._data, write_content_size=True, write_dict_id=False
        )

    @functools.cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(dict_data=self._data)


def train_dictionary(samples: Sequence[bytes], size_bytes: int = DICTIONARY_BYTES) -> bytes:
    """Return a dictionary of at most `size_bytes` for bodies like `samples`; the same samples give the same bytes.

    Raises:
        DictionaryError: there are too few samples, or they have too little in common.
    """
    if len(samples) < MIN_SAMPLES:
        raise DictionaryError(f"{len(samples)} features; at least {MIN_SAMPLES} are needed to train a dictionary")
    step = max(1, sum(map(len, samples)) // _TRAINING_BYTES)
    try:
        data = zstandard.train_dictionary(
            size_bytes, list(samples[::step]), level=_LEVEL, dict_id=_dictionary_id(samples)
        )
    except zstandard.ZstdError as error:
        raise DictionaryError(f"no dictionary can be trained from these features: {error}") from error
    return data.as_bytes()


def _dictionary_id(samples: Sequence[bytes]) -> int:
    """Return a number of zstd's private range (32768 to 2**31 - 1) that depends on the samples alone."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(sample).digest() for sample in samples)).digest()
    return 32768 + int.from_bytes(digest[:4]) % (2**31 - 32768)


class DictionaryCache:
    """The dictionaries of a server, by digest; `find` looks for the bytes of one that is not in memory.

    Keeps the `limit` that were used last. Bytes are used only if their hash is the digest.
    """

    def __init__(self, find: DictionaryLookup | None, limit: int = 64) -> None:
        self._find = find
        self._limit = limit
        self._known: collections.OrderedDict[str, Dictionary] = collections.OrderedDict()

    async def get(self, digest: str) -> Dictionary | None:
        """Return a dictionary, None if it is not found or its bytes are not it."""
        known = self._known.get(digest)
        if known is None:
            known = await self._load(digest)
            if known is None:
                return None
        self._known[digest] = known
        self._known.move_to_end(digest)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return known

    async def _load(self, digest: str) -> Dictionary | None:
        if self._find is None:
            return None
        try:
            data = await self._find(digest)
            if data is None:
                return None
            if len(data) <= MAX_DICTIONARY_BYTES and (found := Dictionary(data)).digest == digest:
                return found
            _LOG.error("tunnel: the file for dictionary %s has other contents; it is not used", digest)
        except (DictionaryError, OSError) as error:
            _LOG.error("tunnel: dictionary %s cannot be used: %s", digest, error)
        return None
