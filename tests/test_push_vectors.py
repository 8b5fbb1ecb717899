"""docs/vectors/profiles.jsonl: the vectors agree with the code, and with a second writing of the format here."""

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from walle.deploy.push.profile_parser import parse_short
from walle.protocol import PushAnswer, ShortProfile, TaskPart, part_digest, part_number, parts_from_header, parts_of

_FILE = Path(__file__).parents[1] / "docs/vectors/profiles.jsonl"


def _vectors() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _FILE.read_text().splitlines()]


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.blake2b(data, digest_size=12, person=b"walle task part").digest()).decode()


def test_the_vectors_of_the_file_are_what_the_code_makes() -> None:
    vectors = _vectors()
    assert {vector["of"] for vector in vectors} == {"part", "number", "profile", "have", "answer"}
    for vector in vectors:
        match vector["of"]:
            case "part":
                part = TaskPart(vector["tasks"], vector["refused"])
                assert part.to_bytes().decode() == vector["bytes"]
                assert part_digest(part.to_bytes()) == _digest(vector["bytes"].encode()) == vector["digest"]
            case "number":
                assert part_number(vector["task"], vector["parts"]) == vector["number"]
                digest = hashlib.blake2b(vector["task"].encode(), digest_size=1, person=b"walle task part").digest()
                assert digest[0] % vector["parts"] == vector["number"]
            case "profile":
                parts = [part_digest(part) if part else "" for part in parts_of(vector["tasks"], {})]
                profile = ShortProfile(vector["app_version"], vector["attributes"], parts, vector["place"])
                assert profile.to_header() == vector["header"]
                read = parse_short(vector["header"].encode())
                assert read is not None
                assert ShortProfile(read.a, read.x, list(read.p), read.n) == profile
            case "have":  # deflate has many writings: a reader takes each
                assert parts_from_header(vector["header"].encode()) == [one.encode() for one in vector["parts"]]
                assert zlib.decompress(base64.urlsafe_b64decode(vector["header"])).decode() == "\n".join(
                    vector["parts"]
                )
            case "answer":
                answer = PushAnswer.from_header(vector["header"])
                assert [answer.unknown, answer.place, answer.wait_s] == [
                    tuple(vector["unknown"]),
                    vector["place"],
                    vector["wait_s"],
                ]
