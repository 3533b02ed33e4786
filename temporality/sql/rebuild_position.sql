-- How far a generation has read.
SELECT position FROM temporality_projector WHERE generation = %(generation)s
