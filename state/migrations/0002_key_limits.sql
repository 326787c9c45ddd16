-- A key's budget of tokens a calendar month, and how its principal's requests are served among others'. The defaults
-- let an older Edge that still runs go on inserting keys.

-- +goose Up

ALTER TABLE api_keys ADD COLUMN monthly_tokens BIGINT NOT NULL DEFAULT 0; -- 0: no limit
ALTER TABLE api_keys ADD COLUMN weight BIGINT NOT NULL DEFAULT 1;
ALTER TABLE api_keys ADD COLUMN priority BIGINT NOT NULL DEFAULT 0;
