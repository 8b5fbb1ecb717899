"""Costs of a network: by the paper's formulas (§4.1), by the engine's search, and measured."""
