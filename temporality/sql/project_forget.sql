-- These events were held back and are applied now.
DELETE FROM temporality_pending WHERE generation = %(generation)s AND position = ANY (%(position)s::bigint[])
