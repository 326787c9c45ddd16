-- A key's name is its own among the keys that can be used. Keys that shared a name before this keep it: renaming one of
-- them would mislead its users. The default lets an older Edge that still runs go on inserting keys.

-- +goose Up

-- 1: the index does not hold the key to its name: it shared the name before this, or has expired.
ALTER TABLE api_keys ADD COLUMN shares_name BIGINT NOT NULL DEFAULT 0;

CREATE INDEX api_keys_by_name ON api_keys (name);

-- Of those that share a name the oldest holds it.
UPDATE api_keys SET shares_name = 1 WHERE revoked_at = 0 AND EXISTS (
    SELECT 1 FROM api_keys older WHERE older.name = api_keys.name AND older.revoked_at = 0
        AND (older.created_at < api_keys.created_at OR older.created_at = api_keys.created_at AND older.id < api_keys.id));

-- Of two keys that are made at once only one gets the name.
CREATE UNIQUE INDEX api_keys_by_live_name ON api_keys (name) WHERE revoked_at = 0 AND shares_name = 0;
