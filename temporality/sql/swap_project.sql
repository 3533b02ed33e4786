-- Replace one project's part of the live generation by the shadow's.
WITH old_items AS (DELETE FROM temporality_item WHERE generation = %(old)s AND project = %(project)s),
     old_progress AS (DELETE FROM temporality_progress WHERE generation = %(old)s AND project = %(project)s),
     old_pending AS (DELETE FROM temporality_pending WHERE generation = %(old)s AND project = %(project)s),
     old_edges AS (DELETE FROM temporality_edge WHERE generation = %(old)s AND project = %(project)s)
SELECT 1
