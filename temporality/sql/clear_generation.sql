-- Delete a part of what a generation says; answers how much. Called until nothing is left.
WITH doomed_items AS (
    DELETE FROM temporality_item WHERE id IN (
        SELECT id FROM temporality_item WHERE generation = %(generation)s LIMIT %(limit)s)
    RETURNING 1
), doomed_progress AS (
    DELETE FROM temporality_progress WHERE id IN (
        SELECT id FROM temporality_progress WHERE generation = %(generation)s LIMIT %(limit)s)
    RETURNING 1
), doomed_pending AS (
    DELETE FROM temporality_pending WHERE id IN (
        SELECT id FROM temporality_pending WHERE generation = %(generation)s LIMIT %(limit)s)
    RETURNING 1
), doomed_edges AS (
    DELETE FROM temporality_edge WHERE id IN (
        SELECT id FROM temporality_edge WHERE generation = %(generation)s LIMIT %(limit)s)
    RETURNING 1
)
SELECT (SELECT count(*) FROM doomed_items) + (SELECT count(*) FROM doomed_progress)
     + (SELECT count(*) FROM doomed_pending) + (SELECT count(*) FROM doomed_edges)
