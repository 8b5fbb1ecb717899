"""Join files: all that a device needs to join a cloud.

`walle cloud up` and `walle device enrol` write them, `walle device run` reads them.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from walle.base.durable_file import write_file
from walle.cli.credentials import fingerprint_of
from walle.errors import ConfigError

JOIN_FILE = "join.json"


class JoinFileError(ConfigError):
    """A join file that cannot be used. `path` is the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path}: {what}; copy {JOIN_FILE} again from the cloud, or make another file with `walle device enrol`"
        )
        self.path = path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Join:
    """Address of a cloud, the CA and keys that the device trusts, and a token that enrols it (a secret).

    The token is "" in a file for devices that are enrolled; `device_id` is that of the one device that it admits, ""
    where it admits any. The file holds the fingerprint of the CA too, which `walle cloud up` shows: a person can
    compare the two where the file came over a path that is not trusted.
    """

    url: str
    tunnel_host: str
    tunnel_port: int
    ca_pem: str
    enrolment_token: str
    trusted_keys: Mapping[str, Any]
    device_id: str = ""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the CA's certificate; raises as `fingerprint_of`."""
        return fingerprint_of(self.ca_pem)

    def save(self, path: Path) -> None:
        """Write the file, for its owner's eyes only."""
        fields = {**dataclasses.asdict(self), "ca_fingerprint": self.fingerprint}
        write_file(path, json.dumps(fields, indent=1) + "\n", mode=0o600)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises JoinFileError where the file does not exist or is not a join file."""
        try:
            value = json.loads(path.read_bytes())
        except OSError as error:
            raise JoinFileError(path, error.strerror or str(error)) from error
        except (ValueError, RecursionError) as error:
            raise JoinFileError(path, f"not JSON ({error})") from error
        if not isinstance(value, dict):
            raise JoinFileError(path, f"must be an object, is {type(value).__name__}")
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        value.setdefault("device_id", "")  # files of before have none
        for name, kind in kinds.items():
            wanted = kind if isinstance(kind, type) else dict
            if name not in value:
                raise JoinFileError(path, f"{name} is missing")
            if not isinstance(value[name], wanted) or isinstance(value[name], bool):
                raise JoinFileError(path, f"{name} must be {wanted.__name__}, is {type(value[name]).__name__}")
        join = cls(**{name: value[name] for name in kinds})
        try:
            fingerprint = join.fingerprint
        except ConfigError as error:
            raise JoinFileError(path, f"ca_pem is not a certificate ({error})") from error
        if value.get("ca_fingerprint") != fingerprint:
            raise JoinFileError(path, f"ca_fingerprint is not that of ca_pem, {fingerprint}")
        return join
