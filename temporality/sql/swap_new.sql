-- The shadow becomes what is read.
UPDATE temporality_projector SET state = 'live', target = 0 WHERE generation = %(new)s AND state = 'building'
