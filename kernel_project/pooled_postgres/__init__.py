"""Django's PostgreSQL backend, with a pool that gets over the loss of many connections at once."""
