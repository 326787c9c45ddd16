-- A run's session is the client's own name for it: few runs share one, so it is no part of usage_sources. How a run was
-- executed is a bit of details: + 2^51 where it was normalized. All that are there were relayed.

-- +goose Up

ALTER TABLE usage_runs ADD COLUMN session_id TEXT NOT NULL DEFAULT ''; -- empty: the client named none
