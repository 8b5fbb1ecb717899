"""Addresses of targets: `https://`, `s3://`, `mqtt://`, `kafka://` and folders, and the sinks that they name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.base.address import Address, parse_address
from walle.deploy.shared_files.s3_store import S3Place
from walle.errors import ConfigError
from walle.sinks.kafka import KafkaSink
from walle.sinks.mqtt import MqttSink
from walle.sinks.object_folder import BucketFolder, DiskFolder
from walle.sinks.parquet import ParquetSink
from walle.sinks.sink import Sink
from walle.sinks.webhook import WebhookSink

PASSWORD = "WALLE_SINK_PASSWORD"  # noqa: S105 - names of environment variables
TOKEN = "WALLE_SINK_TOKEN"  # noqa: S105
CA_FILE = "WALLE_SINK_CA"
_SCHEMES = {"http", "https", "s3", "mqtt", "mqtts", "kafka", "kafkas"}
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_FORMS = "kafka://HOST/TOPIC, mqtt://HOST/TOPIC, https://HOST/PATH, s3://BUCKET/PREFIX or a folder (Parquet)"


def make_sink(target: str, group: str, choice: Mapping[str, Any], environment: Mapping[str, str]) -> Sink:
    """Return the sink that a target's address names.

    Raises:
        ConfigError: the address is not one of a sink, or a package for it is not installed.
    """
    scheme, slashes, _ = target.partition("://")
    if not slashes and target.partition(":")[0] in _SCHEMES:
        raise ConfigError(f"the target {target[:20]!r}... has no // after its scheme; give {_FORMS}")
    if not slashes:
        return ParquetSink(DiskFolder(Path(target)), group, choice)
    match scheme:
        case "http" | "https":
            token = environment.get(TOKEN, "")
            _check_webhook(parse_address(target, password_in=TOKEN), token)
            return WebhookSink(target, group, token=token, ca_file=environment.get(CA_FILE, ""))
        case "s3":
            return ParquetSink(
                BucketFolder(_place(parse_address(target, password_in=PASSWORD)), environment), group, choice
            )
        case "mqtt" | "mqtts":
            address = parse_address(target, password_in=PASSWORD)
            return MqttSink(
                address, group, password=environment.get(PASSWORD, ""), ca_file=environment.get(CA_FILE, "")
            )
        case "kafka" | "kafkas":
            return KafkaSink(parse_address(target, password_in=PASSWORD), ca_file=environment.get(CA_FILE, ""))
        case _:
            raise ConfigError(f"the target {target[:200]!r} is unknown; give {_FORMS}")


def _check_webhook(address: Address, token: str) -> None:
    """Raise ConfigError where no request could be sent, or the token would be sent for others to read."""
    if not address.host:
        raise ConfigError(f"name the host: {address.scheme}://HOST/PATH")
    if address.user:
        raise ConfigError(f"{address.scheme}://{address.host_in_url}: give the token in {TOKEN}, not in the address")
    if not token.isascii() or not token.isprintable():
        raise ConfigError(f"{TOKEN} has characters that a header cannot have; a bearer token is printable ASCII")
    if token and address.scheme == "http" and address.host not in _LOOPBACK:
        raise ConfigError(f"http://{address.host}: {TOKEN} would be sent unencrypted; use https://")


def _place(address: Address) -> S3Place:
    address.check_options("endpoint", "region")
    endpoint, region = address.options.get("endpoint", ""), address.options.get("region", "us-east-1")
    if not address.host:
        raise ConfigError("name the bucket: s3://BUCKET/PREFIX")
    return S3Place(address.host, address.path.strip("/"), endpoint.rstrip("/"), region)
