-- The shadow's edges of the project are live now.
UPDATE temporality_edge SET generation = %(old)s WHERE generation = %(new)s AND project = %(project)s
