"""Global choice of primitives and layouts (003_88355cf18ea90307): costs of a network's candidates, and their selection."""
