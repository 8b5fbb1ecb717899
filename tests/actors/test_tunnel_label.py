"""Labels of a node that say at which address devices reach its tunnel server."""

import pytest

from walle.actors.tunnel import HOST_LABEL, PORT_LABEL, check_label
from walle.errors import ConfigError


def test_tunnel_servers_of_one_node_do_not_share_the_public_port_of_its_label() -> None:
    labels = {HOST_LABEL: "node-1.example", PORT_LABEL: "30443"}
    check_label(labels, 1, "a" * 56)
    check_label({HOST_LABEL: "node-1.example"}, 2, "a" * 56)
    with pytest.raises(ConfigError, match=r"node a{12} has the label walle-tunnel-port=30443.*2 are to run there"):
        check_label(labels, 2, "a" * 56)
