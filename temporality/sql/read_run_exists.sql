-- Has anything of this run arrived, projected or not?
SELECT EXISTS (SELECT 1 FROM temporality_event WHERE project = %(project)s AND run = %(run)s AND run <> '')
