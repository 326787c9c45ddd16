-- Changes of keys and join tokens are in the audit as well, with where each change came from. The defaults let an older
-- Edge that still runs go on adding entries.

-- +goose Up

ALTER TABLE audit ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN join_token TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN source TEXT NOT NULL DEFAULT ''; -- an address, or the user of a command
ALTER TABLE audit ADD COLUMN session TEXT NOT NULL DEFAULT ''; -- of the console
ALTER TABLE audit ADD COLUMN detail TEXT NOT NULL DEFAULT '';

-- Leases are most of the rows, and have neither.
CREATE INDEX audit_by_key ON audit (key_id, at, id) WHERE key_id <> '';

CREATE INDEX audit_by_join_token ON audit (join_token, at, id) WHERE join_token <> '';
