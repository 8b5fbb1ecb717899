"""Texts of retention rules, and places of stores."""

import pytest

from walle.errors import ConfigError
from walle.pipeline.ingest.store.retention import RetentionRule, parse_rule
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.ingest.stores import open_uploads


def test_rules_are_parsed() -> None:
    assert parse_rule("shop/ipv=0.5h") == ("shop/ipv", RetentionRule(max_age_s=1800.0))
    both = RetentionRule(max_age_s=30 * 86_400.0, max_bytes=20 * 10**9, keep_unconsumed=False)
    assert parse_rule("a=b=30d,20GB,force") == ("a=b", both)


@pytest.mark.parametrize(
    "text",
    ["t", "t=", "=30d", "t=d", "t=-1d", "t=1.2.3d", "t=30", "t=force", f"t={'9' * 400}d", f"t={'9' * 400}GB"],
)
def test_a_wrong_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write TOPIC=30d,20GB"):
        parse_rule(text)


def test_a_url_of_another_kind_is_not_taken_for_a_path() -> None:
    with pytest.raises(IngestError, match="postgress://: this kind of URL is unknown"):
        open_uploads("postgress://user:hush@db.example/features")
