"""Labels of a node that say at which address devices reach its tunnel server."""

import pytest

from walle.actors.tunnel import HOST_LABEL, PORT_LABEL, _hosts, check_label
from walle.errors import ConfigError


def test_tunnel_servers_of_one_node_do_not_share_the_public_port_of_its_label() -> None:
    labels = {HOST_LABEL: "node-1.example", PORT_LABEL: "30443"}
    check_label(labels, 1, "a" * 56)
    check_label({HOST_LABEL: "node-1.example"}, 2, "a" * 56)
    with pytest.raises(ConfigError, match=r"node a{12} has the label walle-tunnel-port=30443.*2 are to run there"):
        check_label(labels, 2, "a" * 56)


@pytest.mark.parametrize(
    ("host", "node_ip", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        ("localhost", "10.0.0.7", ("127.0.0.1", "127.0.0.1")),
        ("0.0.0.0", "10.0.0.7", ("0.0.0.0", "10.0.0.7")),
        ("cloud.example", "10.0.0.7", ("10.0.0.7", "10.0.0.7")),
        ("0.0.0.0", "127.0.0.1", ("0.0.0.0", "cloud.example")),
        ("10.0.0.7", "127.0.0.1", ("10.0.0.7", "10.0.0.7")),
        ("host.example", "::1", ("host.example", "host.example")),
    ],
)
def test_devices_of_a_local_ray_get_the_address_of_the_gateway(
    host: str, node_ip: str, expected: tuple[str, str]
) -> None:
    assert _hosts(host, node_ip, ("cloud.example", "other.example")) == expected
