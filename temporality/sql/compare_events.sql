-- Why were these events not new? For each, in order: where its key stands, whether the content is equal, and where
-- another event of the same sequence stands.
SELECT by_key.position, by_key.content = e.content, by_sequence.position
  FROM unnest(%(source_id)s::text[], %(event_id)s::text[], %(run)s::text[], %(sequence)s::bigint[],
              string_to_array(%(content)s, E'\x1e'))
           WITH ORDINALITY AS e (source_id, event_id, run, sequence, content, place)
  LEFT JOIN temporality_event by_key ON by_key.source_id = e.source_id AND by_key.event_id = e.event_id
  LEFT JOIN temporality_event by_sequence
         ON by_sequence.source_id = e.source_id AND by_sequence.run = e.run AND by_sequence.sequence = e.sequence
 ORDER BY e.place
