"""Routes below /v1, who may call each, and the limits of each; interfaces between nodes."""
