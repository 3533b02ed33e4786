-- The text that a person decided on is the one that its hash names (C41).
SELECT a.id AS what FROM approvals_approval a
WHERE a.binding_hash <> encode(sha256(convert_to(a.binding, 'UTF8')), 'hex')
