-- What the shadow holds back of the project is live now.
UPDATE temporality_pending SET generation = %(old)s WHERE generation = %(new)s AND project = %(project)s
