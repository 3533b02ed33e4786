-- An uncertain operation will be probed, or is shown to a person: none waits unseen (S5).
SELECT o.id AS what FROM runs_operation o
WHERE o.state = 'uncertain' AND o.next_probe_at IS NULL AND NOT o.needs_attention
