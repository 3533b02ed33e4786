-- Keep the live projection where it is, so that it can be compared and replaced. Ingest goes on.
SELECT generation, position FROM temporality_projector WHERE state = 'live' FOR UPDATE
