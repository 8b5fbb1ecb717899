"""A cloud's folder, or its database and bucket: configuration, paths, keys, state."""
