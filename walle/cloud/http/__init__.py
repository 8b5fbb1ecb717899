"""HTTP server of the gateways: connections, parser, limits, files, HTTPS."""
