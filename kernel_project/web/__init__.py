"""What all doors over HTTP share: problems, strict bodies, callers, cursor pages. Knows no app."""
