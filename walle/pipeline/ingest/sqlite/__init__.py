"""Store of uploads in a SQLite file."""
