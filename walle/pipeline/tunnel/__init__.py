"""The real-time tunnel (§5.2): frames, the device's client, the cloud's server and durable ingest."""
