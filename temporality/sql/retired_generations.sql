-- Generations that nobody reads and nobody builds.
SELECT generation FROM temporality_projector WHERE state = 'retired'
