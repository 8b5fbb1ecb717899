"""Addresses of other systems: read and shown."""

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.base.address import Address, parse_address
from walle.errors import ConfigError

_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,10}){0,2}", fullmatch=True)
_IPV6 = st.ip_addresses(v=6).map(str)
_SCOPED = st.tuples(st.ip_addresses(v=6), st.sampled_from(["eth0", "lo"])).map(lambda pair: f"{pair[0]}%{pair[1]}")
_HOSTS = st.one_of(_NAMES, st.ip_addresses(v=4).map(str), _IPV6, _SCOPED)
_PATHS = st.one_of(
    st.just(""),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map("/".__add__),
    st.text(string.printable, max_size=20).map("/".__add__),
)


@given(
    scheme=st.sampled_from(["mqtt", "kafkas", "https", "s3"]),
    host=_HOSTS,
    port=st.none() | st.integers(0, 65535),
    path=_PATHS,
)
def test_a_shown_address_is_read_as_the_same(scheme: str, host: str, port: int | None, path: str) -> None:
    address = Address(scheme, host, port, "", path, {})
    assert parse_address(str(address), password_in="X") == address


@given(host=_IPV6, port=st.integers(1, 65535))
def test_an_ipv6_host_is_shown_in_brackets(host: str, port: int) -> None:
    address = parse_address(f"mqtt://me@[{host}]:{port}/a%20b?x=1", password_in="X")
    assert (ipaddress.ip_address(address.host), address.port, address.path) == (
        ipaddress.ip_address(host),
        port,
        "/a b",
    )
    assert str(address) == f"mqtt://[{host}]:{port}/a%20b"


def test_a_refusal_shows_an_ipv6_host_in_brackets() -> None:
    with pytest.raises(ConfigError, match=r"mqtt://\[::1\]: give the password in X"):
        parse_address("mqtt://me:secret@[::1]/x", password_in="X")
