-- Which of these leases hold still, without waiting for anybody who writes to their streams.
SELECT s.run_id, s.lease_token FROM outbox_stream s
JOIN unnest(%(run_ids)s::uuid[], %(tokens)s::uuid[]) AS a (run_id, token)
    ON a.run_id = s.run_id AND a.token = s.lease_token
WHERE s.leased_until > clock_timestamp()
