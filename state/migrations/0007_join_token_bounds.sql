-- What the Nodes of a join token may claim. The tokens that are there keep as many names as an Edge remembers Nodes; the
-- defaults let an older Edge that still runs go on inserting tokens.

-- +goose Up

ALTER TABLE join_tokens ADD COLUMN labels TEXT NOT NULL DEFAULT '[]'; -- JSON array of key=glob; empty: any
ALTER TABLE join_tokens ADD COLUMN models TEXT NOT NULL DEFAULT '[]'; -- JSON array of globs; empty: any
ALTER TABLE join_tokens ADD COLUMN max_nodes BIGINT NOT NULL DEFAULT 4096;
ALTER TABLE join_tokens ADD COLUMN max_sessions BIGINT NOT NULL DEFAULT 16384;
ALTER TABLE join_tokens ADD COLUMN max_models BIGINT NOT NULL DEFAULT 16384;
ALTER TABLE join_tokens ADD COLUMN max_inventory_bytes BIGINT NOT NULL DEFAULT 67108864;

-- When the token last used the name; 0: before this was kept.
ALTER TABLE node_claims ADD COLUMN used_at BIGINT NOT NULL DEFAULT 0;
