"""Dictionaries of the tunnel, which are shared files of task versions."""

import asyncio

from walle.deploy.shared_files.store import FileStore
from walle.pipeline.tunnel.dictionaries import DictionaryLookup
from walle.protocol import MAX_DICTIONARY_BYTES


def stored_dictionary(files: FileStore) -> DictionaryLookup:
    """Return a lookup of the shared file with a hash, if it is short enough for a dictionary."""

    def read(digest: str) -> bytes | None:
        if not files.has(digest):
            return None
        with files.open(digest) as file:
            return file.read(MAX_DICTIONARY_BYTES + 1)

    async def find(digest: str) -> bytes | None:
        return await asyncio.to_thread(read, digest)

    return find
