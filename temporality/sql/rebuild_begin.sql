-- Start a shadow generation, or go on with one that was interrupted.
INSERT INTO temporality_projector (generation, state, position, target, project, catalogue, updated_at)
SELECT (SELECT max(generation) + 1 FROM temporality_projector), 'building', 0, head.position, %(project)s,
       %(catalogue)s, clock_timestamp()
  FROM temporality_head head
    ON CONFLICT (state) WHERE state = 'building' DO UPDATE SET updated_at = clock_timestamp()
RETURNING generation, position, target, project
