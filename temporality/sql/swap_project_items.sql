-- The shadow's items of the project are live now.
UPDATE temporality_item SET generation = %(old)s WHERE generation = %(new)s AND project = %(project)s
