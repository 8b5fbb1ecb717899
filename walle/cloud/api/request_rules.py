"""Rules of the paths that Walle's gateways serve: the limit of each one's bodies, which begin work, which stream."""

import re

from walle.adapt.tuning.coordinator import MAX_MODEL_BYTES
from walle.cloud.api.outcomes import MAX_OUTCOMES_BYTES
from walle.cloud.http.limits import BodyRule, RequestRules
from walle.deploy.git.git_http import MAX_REQUEST_BYTES
from walle.deploy.git.lfs_http import MAX_BATCH_BYTES
from walle.deploy.policies.attribute_table import MAX_TABLE_BYTES
from walle.protocol import MAX_EXCLUSIVE_BYTES
from walle.task.format.large_file import MAX_LARGE_FILE_BYTES

_BODIES = (  # every other path of Walle has no body
    BodyRule(re.compile(r"/git/[^/]*/info/lfs/objects/batch"), MAX_BATCH_BYTES, known_only=True),
    BodyRule(re.compile(r"/git/[^/]*/info/lfs/objects/[0-9a-f]{64}"), MAX_LARGE_FILE_BYTES, known_only=True),
    BodyRule(re.compile(r"/git/.*"), MAX_REQUEST_BYTES, known_only=True),
    BodyRule(re.compile(r"/v1/outcomes"), MAX_OUTCOMES_BYTES, known_only=True),
    BodyRule(re.compile(r"/v1/checkin"), 1024, known_only=False),
    BodyRule(re.compile(r"/v1/identity/(certificate|challenge|session)"), 16 << 10, known_only=False),  # for enrolment
    BodyRule(re.compile(r"/v1/exclusive/.*"), MAX_EXCLUSIVE_BYTES, known_only=True),
    BodyRule(re.compile(r"/v1/attributes/.*"), MAX_TABLE_BYTES, known_only=True),
    BodyRule(re.compile(r"/v1/tuning/.*"), MAX_MODEL_BYTES, known_only=True),
    BodyRule(re.compile(r"/v1/.*"), 256 << 10, known_only=True),
    BodyRule(re.compile(r"/dashboard/login"), 4 << 10, known_only=False),
    BodyRule(re.compile(r"/dashboard(/.*)?"), 64 << 10, known_only=True),
    BodyRule(re.compile(r"/(cdn|cen|docs|healthz|metrics|openapi\.json)(/.*)?"), 0, known_only=False),
)
REQUEST_RULES = RequestRules(
    _BODIES,
    new_work=re.compile(
        r"/v1/releases(/[^/]*/(start|resume))?|/dashboard/releases/[^/]*/(start|resume)"
    ),  # rollbacks are never new work
    streams=re.compile(r"/v1/releases/[^/]*/stream|/dashboard(/.*)?/live"),
)
