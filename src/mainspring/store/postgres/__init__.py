"""PostgreSQL itself: DSNs, connections, reconnecting, errors, the schema and its migrations. Imports no other room."""
