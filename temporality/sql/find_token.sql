-- The right that a bearer token gives, by the hash of its secret.
SELECT name, role, all_projects, projects, sources
  FROM temporality_token
 WHERE token_hash = %(token_hash)s AND revoked_at IS NULL
