-- These events have arrived or were applied: settle the edges that lead to them. Answers each edge that changed, with
-- the position of the event that it belongs to, and what became of it.
WITH landed AS (
    SELECT * FROM unnest(%(source_id)s::text[], %(event_id)s::text[], %(project)s::text[], %(applied)s::boolean[])
                      AS l (source_id, event_id, project, applied)
), edge AS (
    SELECT e.id, e.position, e.project = l.project AS same_project, l.applied, e.state, e.parent_event_id, e.source_id
      FROM temporality_edge e
      JOIN landed l ON l.source_id = e.source_id AND l.event_id = e.parent_event_id
     WHERE e.generation = %(generation)s AND e.state IN ('missing', 'unapplied')
), satisfied AS (
    DELETE FROM temporality_edge t USING edge WHERE t.id = edge.id AND same_project AND applied
), others AS (
    UPDATE temporality_edge t
       SET state = CASE WHEN same_project THEN 'unapplied' ELSE 'foreign_project' END
      FROM edge WHERE t.id = edge.id AND NOT (same_project AND applied)
)
SELECT position, source_id, parent_event_id, state = 'missing' AND same_project AND NOT applied AS may_close_a_circle
  FROM edge
