"""State of the cloud for people and monitors: /healthz, /metrics, traces."""
