-- Is anything released and not applied yet?
SELECT EXISTS (SELECT 1 FROM temporality_pending WHERE generation = %(generation)s AND state = 'ready')
