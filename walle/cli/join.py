"""`join.json`: all that a device needs to join a cloud. `walle cloud up` writes it, `walle device run` reads it."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from walle.durable_file import write_file
from walle.errors import ConfigError

JOIN_FILE = "join.json"


class JoinFileError(ConfigError):
    """A join file that cannot be used. `path` is the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}; copy {JOIN_FILE} again from the folder of the cloud")
        self.path = path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Join:
    """Address of a cloud, the token that admits a device (a secret), and the keys that the device trusts."""

    url: str
    tunnel_host: str
    tunnel_port: int
    ca_pem: str
    token: str
    trusted_keys: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Write the file, for its owner's eyes only."""
        write_file(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

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
        for name, kind in kinds.items():
            wanted = kind if isinstance(kind, type) else dict
            if name not in value:
                raise JoinFileError(path, f"{name} is missing")
            if not isinstance(value[name], wanted) or isinstance(value[name], bool):
                raise JoinFileError(path, f"{name} must be {wanted.__name__}, is {type(value[name]).__name__}")
        return cls(**{name: value[name] for name in kinds})
