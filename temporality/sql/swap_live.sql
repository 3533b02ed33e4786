-- What was read so far steps back: first, because only one generation may be live.
UPDATE temporality_projector SET state = 'retired' WHERE generation = %(old)s AND state = 'live'
