-- A generation that is empty and not read any more is forgotten.
DELETE FROM temporality_projector WHERE generation = %(generation)s AND state <> 'live'
