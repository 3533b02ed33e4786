-- Write down the causal edges that are not satisfied.
INSERT INTO temporality_edge (generation, position, source_id, parent_event_id, project, state)
SELECT %(generation)s, e.position, e.source_id, d.parent_event_id, e.project, d.state
  FROM unnest(%(position)s::bigint[], %(parent_event_id)s::text[], %(state)s::text[])
           AS d (position, parent_event_id, state)
  JOIN temporality_event e ON e.position = d.position
    ON CONFLICT (generation, position, parent_event_id) DO NOTHING
