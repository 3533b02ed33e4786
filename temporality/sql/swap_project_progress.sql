-- The shadow's run counts of the project are live now.
UPDATE temporality_progress SET generation = %(old)s WHERE generation = %(new)s AND project = %(project)s
