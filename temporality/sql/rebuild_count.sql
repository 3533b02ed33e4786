-- How many events the rebuild has still to read.
SELECT count(*) FROM temporality_event
 WHERE position > %(after)s AND position <= %(upto)s AND (%(project)s::text = '' OR project = %(project)s)
