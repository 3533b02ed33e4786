-- Lift the quarantine; project_release says what else these events wait for.
UPDATE temporality_pending SET state = 'ready', reason = ''
 WHERE generation = %(generation)s AND position = ANY (%(position)s::bigint[]) AND state = 'quarantined'
