-- Keep each refused version once and count how often it came. Sorted, so that two servers lock in the same order.
INSERT INTO temporality_conflict (
    kind, position, source_id, event_id, project, run, content_hash, content, raw, first_seen_at, last_seen_at,
    times_seen)
SELECT c.kind, min(c.position), c.source_id, c.event_id, min(c.project), min(c.run), c.content_hash, min(c.content),
       min(NULLIF(c.raw, '')), clock_timestamp(), clock_timestamp(), count(*)
  FROM (SELECT *, sha256(convert_to(content, 'UTF8')) AS content_hash
          FROM unnest(%(kind)s::text[], %(position)s::bigint[], %(source_id)s::text[], %(event_id)s::text[],
                      %(project)s::text[], %(run)s::text[], string_to_array(%(content)s, E'\x1e'), string_to_array(%(raw)s, E'\x1e'))
                   AS e (kind, position, source_id, event_id, project, run, content, raw)) c
 GROUP BY c.source_id, c.event_id, c.content_hash, c.kind
 ORDER BY c.source_id, c.event_id, c.content_hash, c.kind
    ON CONFLICT (source_id, event_id, content_hash, kind) DO UPDATE
   SET times_seen = temporality_conflict.times_seen + EXCLUDED.times_seen, last_seen_at = EXCLUDED.last_seen_at
