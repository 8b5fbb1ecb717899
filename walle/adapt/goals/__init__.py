"""Requirements of fitted models: goals, the file that has them, and their order (§4.1, §4.3)."""
