-- The generation that readers see.
SELECT generation FROM temporality_projector WHERE state = 'live'
