"""Choice of primitives and layouts for a whole network (003_88355cf18ea90307): predicted costs, and PBQP."""
