"""Messages that cross the device-cloud line, and the value types of both sides. Imports nothing of walle.

Over HTTP (§6):
    request header   X-Walle-Profile   `Profile`, compact JSON
    response header  X-Walle-Tasks     a list of `Directive`s, compact JSON
    GET  {url}/{sha256}                a signed `Manifest` (an `Envelope`), then the files it lists
    POST /v1/outcomes                  `OutcomeBatch`
Over the tunnel (§5.2), each in one frame of `walle.pipeline.tunnel.frames`:
    device → cloud   `Hello`, `Upload`, `UploadBatch`, `Request`, `Cancel`, `Ping`
    cloud → device   `Welcome`, `Ack`, `Response`, `Drain`, `Refusal`, `Pong`

What is signed is the exact bytes that were received; nothing is re-encoded before a signature is checked.
"""

from walle.protocol.cloud_policy import CloudPolicy
from walle.protocol.fields import MAX_ID_CHARS, ProtocolError, canonical_json, check_sha256, printable, whole_characters
from walle.protocol.history import HistoryPolicy
from walle.protocol.manifests import PHASES, Envelope, FileEntry, Manifest
from walle.protocol.outcomes import Failure, Outcome, OutcomeBatch, OutcomeKind
from walle.protocol.push import (
    PROFILE_HEADER,
    TASKS_HEADER,
    Attribute,
    Directive,
    Profile,
    directives_from_header,
    directives_to_header,
)
from walle.protocol.reads import parse_reads
from walle.protocol.task_state import FeaturesPolicy, StatePolicy, UpgradePolicy
from walle.protocol.triggers import ContentsTest, FullPolicy, QueuePolicy, TriggerCondition
from walle.protocol.tunnel import (
    DICTIONARY_MARK,
    MAX_DEADLINE_MS,
    MAX_DICTIONARIES,
    MAX_DICTIONARY_BYTES,
    MAX_SEQ,
    OLDEST_PROTOCOL,
    PRIORITIES,
    PROTOCOL_VERSION,
    Ack,
    Cancel,
    Drain,
    Frame,
    Hello,
    Origin,
    OutboxMark,
    Ping,
    Pong,
    Refusal,
    Request,
    Response,
    Upload,
    UploadBatch,
    Welcome,
    digests_from_text,
    numbers_from_text,
    origins_from_text,
    origins_to_text,
)

__all__ = [
    "DICTIONARY_MARK",
    "MAX_DEADLINE_MS",
    "MAX_DICTIONARIES",
    "MAX_DICTIONARY_BYTES",
    "MAX_ID_CHARS",
    "MAX_SEQ",
    "OLDEST_PROTOCOL",
    "PHASES",
    "PRIORITIES",
    "PROFILE_HEADER",
    "PROTOCOL_VERSION",
    "TASKS_HEADER",
    "Ack",
    "Attribute",
    "Cancel",
    "CloudPolicy",
    "ContentsTest",
    "Directive",
    "Drain",
    "Envelope",
    "Failure",
    "FeaturesPolicy",
    "FileEntry",
    "Frame",
    "FullPolicy",
    "Hello",
    "HistoryPolicy",
    "Manifest",
    "Origin",
    "OutboxMark",
    "Outcome",
    "OutcomeBatch",
    "OutcomeKind",
    "Ping",
    "Pong",
    "Profile",
    "ProtocolError",
    "QueuePolicy",
    "Refusal",
    "Request",
    "Response",
    "StatePolicy",
    "TriggerCondition",
    "UpgradePolicy",
    "Upload",
    "UploadBatch",
    "Welcome",
    "canonical_json",
    "check_sha256",
    "digests_from_text",
    "directives_from_header",
    "directives_to_header",
    "numbers_from_text",
    "origins_from_text",
    "origins_to_text",
    "parse_reads",
    "printable",
    "whole_characters",
]
