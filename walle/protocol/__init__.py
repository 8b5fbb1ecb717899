"""Messages that cross the device-cloud line, and the value types of both sides. Imports nothing of walle.

Over HTTP (§6):
    request header   X-Walle-Profile   `Profile`, compact JSON
    response header  X-Walle-Tasks     a list of `Directive`s, compact JSON
    GET  /cdn/{sha256}                 a signed `Manifest` (an `Envelope`), then the files it lists
    POST /v1/outcomes                  `OutcomeBatch`
Over the tunnel (§5.2), each in one frame of `walle.pipeline.tunnel.frames`:
    device → cloud   `Hello`, `Upload`, `Request`, `Ping`
    cloud → device   `Welcome`, `Ack`, `Response`, `Refusal`, `Pong`

What is signed is the exact bytes that were received; nothing is re-encoded before a signature is checked.
"""

from walle.protocol.fields import MAX_ID_CHARS, ProtocolError, canonical_json, check_sha256, printable, whole_characters
from walle.protocol.history import HistoryPolicy
from walle.protocol.manifests import PHASES, Envelope, FileEntry, Manifest
from walle.protocol.outcomes import Outcome, OutcomeBatch, OutcomeKind
from walle.protocol.push import (
    PROFILE_HEADER,
    TASKS_HEADER,
    Attribute,
    Directive,
    Profile,
    directives_from_header,
    directives_to_header,
)
from walle.protocol.task_state import FeaturesPolicy, StatePolicy, UpgradePolicy
from walle.protocol.triggers import ContentsTest, FullPolicy, QueuePolicy, TriggerCondition
from walle.protocol.tunnel import (
    MAX_SEQ,
    PROTOCOL_VERSION,
    Ack,
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
    Welcome,
    origins_from_text,
    origins_to_text,
)

__all__ = [
    "MAX_ID_CHARS",
    "MAX_SEQ",
    "PHASES",
    "PROFILE_HEADER",
    "PROTOCOL_VERSION",
    "TASKS_HEADER",
    "Ack",
    "Attribute",
    "ContentsTest",
    "Directive",
    "Envelope",
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
    "Welcome",
    "canonical_json",
    "check_sha256",
    "directives_from_header",
    "directives_to_header",
    "origins_from_text",
    "origins_to_text",
    "printable",
    "whole_characters",
]
