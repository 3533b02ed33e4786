-- Where the inbox and the live projection stand.
SELECT head.position, live.position
  FROM temporality_head head CROSS JOIN temporality_projector live
 WHERE live.state = 'live'
