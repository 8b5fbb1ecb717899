"""Store of uploads in PostgreSQL."""
