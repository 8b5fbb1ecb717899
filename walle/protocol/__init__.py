"""Messages that cross the device-cloud line, and the value types of both sides. Imports nothing of walle.

Over HTTP (§6):
    request header   X-Walle-Profile   `ShortProfile`, or `Profile` of older devices, compact JSON
    request header   X-Walle-Have      `TaskPart`s that the cloud asked for
    request header   X-Walle-Device    session of the device, a token of the cloud
    response header  X-Walle-Tasks     a list of `Directive`s, or a `PushAnswer`, compact JSON
    response header  X-Walle-Trust     `Timestamp`, compact JSON
    response header  X-Walle-Trace     share of installs and runs whose times are asked for (`walle.protocol.traces`)
    GET  /trust/{version}.{name}.json  root and scenarios metadata, in the format of The Update Framework
    GET  {url}/{sha256}                a signed `Manifest` (an `Envelope`), then the files it lists
    GET  /cen/files                    `ExclusiveList` of the device, then /cen/files/{sha256}, sealed to it
    POST /v1/outcomes                  `OutcomeBatch`
    POST /v1/tuning/{scenario}/{task}  a device's model, then /peers: JSON, and /peers/{sha256}: a peer's model
Over the tunnel (§5.2), each in one frame of `walle.pipeline.tunnel.frames`:
    device → cloud   `Hello`, `Upload`, `UploadBatch`, `Request`, `Cancel`, `Ping`
    cloud → device   `Welcome`, `Ack`, `Response`, `Drain`, `Refusal`, `Pong`

The signature of a manifest is over the bytes that were received. Directives, timestamps and metadata are parsed first;
their signatures are over the one canonical encoding of the parsed fields.
"""

from walle.protocol.cloud_policy import CloudPolicy
from walle.protocol.exclusive import (
    EXCLUSIVE_NAME_RULE,
    MAX_EXCLUSIVE_BYTES,
    MAX_EXCLUSIVE_FILES,
    MAX_LIST_BYTES,
    SEAL_OVERHEAD_BYTES,
    ExclusiveFile,
    ExclusiveList,
    SealedFile,
    is_exclusive_name,
    parse_exclusive,
    seal_info,
)
from walle.protocol.fields import MAX_ID_CHARS, ProtocolError, canonical_json, check_sha256, printable, whole_characters
from walle.protocol.history import HistoryPolicy
from walle.protocol.manifests import (
    MAX_SMOKE_BYTES,
    MAX_SMOKE_FILE_BYTES,
    PHASES,
    SMOKE_EVENTS,
    SMOKE_FILE,
    SMOKE_FOLDER,
    Envelope,
    FileEntry,
    Manifest,
    ModuleSetVersion,
)
from walle.protocol.options import Option, options_of
from walle.protocol.outcomes import (
    LATENCY_MS,
    LONGEST_REPORT_INTERVAL_S,
    METRIC_NAME_RULE,
    REPORT_INTERVAL_HEADER,
    Failure,
    FailureClass,
    Metric,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    is_metric_name,
    mean_with,
)
from walle.protocol.output import Destination, OutputPolicy
from walle.protocol.push import (
    MODEL_GOAL,
    PROFILE_HEADER,
    TASKS_HEADER,
    Attribute,
    Audience,
    Directive,
    Profile,
    ShortProfile,
    directives_from_header,
    directives_to_header,
)
from walle.protocol.push_answer import PushAnswer
from walle.protocol.reads import parse_reads
from walle.protocol.sessions import DEVICE_HEADER, session_proof
from walle.protocol.task_parts import (
    HAVE_HEADER,
    MAX_PARTS,
    TaskPart,
    part_digest,
    part_number,
    parts_from_header,
    parts_of,
    parts_to_header,
)
from walle.protocol.task_settings import TaskSettings
from walle.protocol.task_state import FeaturesPolicy, FullStatePolicy, StatePolicy, UpgradePolicy
from walle.protocol.training import TrainingPolicy
from walle.protocol.triggers import ContentsTest, FullPolicy, QueuePolicy, TriggerCondition
from walle.protocol.trust import MAX_EPOCH, TRUST_HEADER, Alarm, Timestamp
from walle.protocol.tunnel import (
    DICTIONARY_MARK,
    MAX_DEADLINE_MS,
    MAX_DICTIONARIES,
    MAX_DICTIONARY_BYTES,
    MAX_SEQ,
    MAX_VERSION_CHARS,
    OLDEST_CLOUD,
    OLDEST_PROTOCOL,
    PRIORITIES,
    PROTOCOL_VERSION,
    UNKNOWN_VERSION,
    VERSIONS_FROM,
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
    sound_version,
)
from walle.protocol.variants import (
    MAX_VARIANT_RULE_CHARS,
    MAX_VARIANTS,
    VARIANT_NAME_RULE,
    FileVariant,
    installed_name,
    is_variant_name,
    version_of,
)

__all__ = [
    "DEVICE_HEADER",
    "DICTIONARY_MARK",
    "EXCLUSIVE_NAME_RULE",
    "HAVE_HEADER",
    "LATENCY_MS",
    "LONGEST_REPORT_INTERVAL_S",
    "MAX_DEADLINE_MS",
    "MAX_DICTIONARIES",
    "MAX_DICTIONARY_BYTES",
    "MAX_EPOCH",
    "MAX_EXCLUSIVE_BYTES",
    "MAX_EXCLUSIVE_FILES",
    "MAX_ID_CHARS",
    "MAX_LIST_BYTES",
    "MAX_PARTS",
    "MAX_SEQ",
    "MAX_SMOKE_BYTES",
    "MAX_SMOKE_FILE_BYTES",
    "MAX_VARIANTS",
    "MAX_VARIANT_RULE_CHARS",
    "MAX_VERSION_CHARS",
    "METRIC_NAME_RULE",
    "MODEL_GOAL",
    "OLDEST_CLOUD",
    "OLDEST_PROTOCOL",
    "PHASES",
    "PRIORITIES",
    "PROFILE_HEADER",
    "PROTOCOL_VERSION",
    "REPORT_INTERVAL_HEADER",
    "SEAL_OVERHEAD_BYTES",
    "SMOKE_EVENTS",
    "SMOKE_FILE",
    "SMOKE_FOLDER",
    "TASKS_HEADER",
    "TRUST_HEADER",
    "UNKNOWN_VERSION",
    "VARIANT_NAME_RULE",
    "VERSIONS_FROM",
    "Ack",
    "Alarm",
    "Attribute",
    "Audience",
    "Cancel",
    "CloudPolicy",
    "ContentsTest",
    "Destination",
    "Directive",
    "Drain",
    "Envelope",
    "ExclusiveFile",
    "ExclusiveList",
    "Failure",
    "FailureClass",
    "FeaturesPolicy",
    "FileEntry",
    "FileVariant",
    "Frame",
    "FullPolicy",
    "FullStatePolicy",
    "Hello",
    "HistoryPolicy",
    "Manifest",
    "Metric",
    "ModuleSetVersion",
    "Option",
    "Origin",
    "OutboxMark",
    "Outcome",
    "OutcomeBatch",
    "OutcomeKind",
    "OutputPolicy",
    "Ping",
    "Pong",
    "Profile",
    "ProtocolError",
    "PushAnswer",
    "QueuePolicy",
    "Refusal",
    "Request",
    "Response",
    "SealedFile",
    "ShortProfile",
    "StatePolicy",
    "TaskPart",
    "TaskSettings",
    "Timestamp",
    "TrainingPolicy",
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
    "installed_name",
    "is_exclusive_name",
    "is_metric_name",
    "is_variant_name",
    "mean_with",
    "numbers_from_text",
    "options_of",
    "origins_from_text",
    "origins_to_text",
    "parse_exclusive",
    "parse_reads",
    "part_digest",
    "part_number",
    "parts_from_header",
    "parts_of",
    "parts_to_header",
    "printable",
    "seal_info",
    "session_proof",
    "sound_version",
    "version_of",
    "whole_characters",
]
