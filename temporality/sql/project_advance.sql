-- The generation has read the inbox up to here, in the same transaction as what it made of it.
UPDATE temporality_projector
   SET position = %(position)s, catalogue = %(catalogue)s, updated_at = clock_timestamp()
 WHERE generation = %(generation)s
