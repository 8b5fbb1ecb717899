"""Fine-tuning at the edge: devices share models, and no data (§5)."""
