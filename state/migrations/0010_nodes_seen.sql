-- Nodes that were connected, so that a restart of the Edge forgets neither them nor what an operator said of them.

-- +goose Up

CREATE TABLE nodes_seen (
    node         TEXT   NOT NULL PRIMARY KEY,
    seen_at      BIGINT NOT NULL, -- when it was last known to be connected
    cause        TEXT   NOT NULL, -- why its last session ended; empty: it was connected
    drained_boot TEXT   NOT NULL, -- the boot id of the process that an operator drained; empty: none
    models       TEXT   NOT NULL, -- JSON array of the names that it offered last
    size         BIGINT NOT NULL  -- of models, in bytes
);
