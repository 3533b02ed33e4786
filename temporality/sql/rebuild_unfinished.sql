-- A rebuild that was interrupted.
SELECT generation FROM temporality_projector WHERE state = 'building'
