"""Packs that ask for more than they have, and the requests that push them."""

import hashlib
import struct
import zlib
from collections.abc import Mapping

import httpx

from tests.security.attacked_gateway import Target

COMMIT, TREE, BLOB, REF_DELTA = 1, 2, 3, 7
_ZERO = "0" * 40


def object_id(kind: bytes, data: bytes) -> bytes:
    return hashlib.sha1(kind + b" %d\0" % len(data) + data).digest()


def entry(kind: int, size_bytes: int, packed: bytes, base: bytes = b"") -> bytes:
    """Return an object of a pack: its type and size, the object that it is a delta of, and its packed data."""
    first, rest = kind << 4 | size_bytes & 15, size_bytes >> 4
    head = bytearray()
    while rest:
        head.append(first | 0x80)
        first, rest = rest & 0x7F, rest >> 7
    head.append(first)
    return bytes(head) + base + packed


def pack(*entries: bytes, count: int | None = None) -> bytes:
    data = struct.pack(">4sII", b"PACK", 2, len(entries) if count is None else count) + b"".join(entries)
    return data + hashlib.sha1(data).digest()


def zeros(size_bytes: int) -> bytes:
    """Return packed zeros."""
    packer, block = zlib.compressobj(1), bytes(1 << 20)
    parts = [packer.compress(block[: min(len(block), size_bytes - at)]) for at in range(0, size_bytes, len(block))]
    return b"".join(parts) + packer.flush()


def zip_bomb(size_bytes: int) -> bytes:
    return pack(entry(BLOB, size_bytes, zeros(size_bytes)))


def delta_bomb(size_bytes: int) -> bytes:
    """Return a pack with 16 MB of zeros, and a delta that copies them over and over."""
    step = 0xFFFFFF
    count = size_bytes // step
    delta = _number(step) + _number(step * count) + b"\xf0\xff\xff\xff" * count
    base = object_id(b"blob", bytes(step))
    return pack(entry(BLOB, step, zeros(step)), entry(REF_DELTA, len(delta), zlib.compress(delta), base))


def broken_commit() -> bytes:
    """Return a pack with a commit that no git would make: its tree has a file named .git."""
    blob = b"x"
    tree = b"100644 .git\0" + object_id(b"blob", blob)
    commit = commit_of(object_id(b"tree", tree))
    return pack(*(entry(kind, len(data), zlib.compress(data)) for kind, data in ((1, commit), (2, tree), (3, blob))))


def commit_of(tree: bytes) -> bytes:
    who = b"a <a@b> 1700000000 +0000"
    return b"tree %s\nauthor %s\ncommitter %s\n\nm\n" % (tree.hex().encode(), who, who)


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def version(files: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Return a pack with one commit of these files, and the commit."""
    blobs = {name: object_id(b"blob", data) for name, data in files.items()}
    tree = b"".join(b"100644 %s\0" % name.encode() + sha for name, sha in sorted(blobs.items()))
    commit = commit_of(object_id(b"tree", tree))
    objects = [(COMMIT, commit), (TREE, tree), *((BLOB, data) for data in files.values())]
    packed = pack(*(entry(kind, len(data), zlib.compress(data)) for kind, data in objects))
    return packed, object_id(b"commit", commit).hex()


def push(target: Target, pushed: bytes, *, new: str = "1" * 40, ref: str = "refs/heads/x") -> httpx.Response:
    """Push a pack that makes a branch."""
    line = f"{_ZERO} {new} {ref}\0report-status"
    body = f"{len(line) + 4:04x}{line}0000".encode() + pushed
    kind = {"content-type": "application/x-git-receive-pack-request"}
    url = f"{target.url}/git/shop.git/git-receive-pack"
    return httpx.post(url, content=body, headers=kind, auth=("me", target.token), timeout=120, verify=False)
