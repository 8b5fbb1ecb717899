"""Server of the real-time tunnel (§5.2), in the cloud."""
