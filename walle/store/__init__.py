"""SQLite and PostgreSQL: connections, schema, leases, errors, free disk space."""
