-- These events have arrived or were applied: settle the edges that lead to them. Answers each edge that changed, with
-- the position of the event that it belongs to, and what became of it.
WITH landed AS (
    SELECT * FROM unnest(%(source_id)s::text[], %(event_id)s::text[], %(project)s::text[], %(applied)s::boolean[])
                      AS l (source_id, event_id, project, applied)
), edge AS MATERIALIZED (
    SELECT e.id, e.position, e.source_id, e.parent_event_id, e.state,
           e.project = l.project AS same_project, l.applied
      FROM landed l
     CROSS JOIN LATERAL (
           SELECT * FROM temporality_edge e
            WHERE e.generation = %(generation)s AND e.source_id = l.source_id AND e.parent_event_id = l.event_id
           OFFSET 0) e
     WHERE e.state IN ('missing', 'unapplied')
), satisfied AS (
    DELETE FROM temporality_edge WHERE id = ANY (ARRAY(SELECT id FROM edge WHERE same_project AND applied))
), later AS (
    UPDATE temporality_edge SET state = 'unapplied'
     WHERE id = ANY (ARRAY(SELECT id FROM edge WHERE same_project AND NOT applied))
), never AS (
    UPDATE temporality_edge SET state = 'foreign_project'
     WHERE id = ANY (ARRAY(SELECT id FROM edge WHERE NOT same_project))
)
SELECT position, source_id, parent_event_id, state = 'missing' AND same_project AND NOT applied AS may_close_a_circle
  FROM edge
