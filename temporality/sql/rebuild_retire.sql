-- The shadow has served: nobody goes on with it, and it is to be deleted.
UPDATE temporality_projector SET state = 'retired' WHERE generation = %(generation)s AND state = 'building'
