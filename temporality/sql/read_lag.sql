-- How far the projection is behind the inbox, over all projects, and what is held back in the readable ones.
SELECT head.position, live.position, clock_timestamp(),
       (SELECT count(*) FROM (SELECT 1 FROM temporality_event e WHERE e.position > live.position LIMIT 100001) b),
       (SELECT e.received_at FROM temporality_event e WHERE e.position > live.position ORDER BY e.position LIMIT 1),
       (SELECT COALESCE(jsonb_object_agg(state, members), '{}') FROM (
            SELECT p.state, jsonb_build_object('count', count(*), 'oldest_received_at', min(p.received_at)) AS members
              FROM temporality_pending p
             WHERE p.generation = live.generation
               AND (%(project)s::text IS NULL OR p.project = %(project)s)
               AND (%(projects)s::text[] IS NULL OR p.project = ANY(%(projects)s))
             GROUP BY p.state) s)
  FROM temporality_head head CROSS JOIN temporality_projector live
 WHERE live.state = 'live'
