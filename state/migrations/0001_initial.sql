-- SQLite and PostgreSQL both run this file. Times are milliseconds since 1970 in UTC, 0 is "never". There is no way
-- down: a schema only grows.

-- +goose Up

-- Which pepper each digest was made with must be known, and a swapped or lost pepper file must be noticed before it
-- makes every token fail: proof is the HMAC of a constant.
CREATE TABLE peppers (
    version BIGINT NOT NULL PRIMARY KEY,
    proof   TEXT   NOT NULL
);

CREATE TABLE api_keys (
    id             TEXT   NOT NULL PRIMARY KEY,
    digest         TEXT   NOT NULL, -- hex
    pepper_version BIGINT NOT NULL,
    name           TEXT   NOT NULL,
    owner          TEXT   NOT NULL, -- empty: the key itself
    routes         TEXT   NOT NULL, -- JSON array of globs; empty: all
    rpm            BIGINT NOT NULL, -- 0: no limit
    tpm            BIGINT NOT NULL,
    concurrency    BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    last_used_at   BIGINT NOT NULL, -- to the minute
    revoked_at     BIGINT NOT NULL,
    revoked_by     TEXT   NOT NULL
);

CREATE TABLE join_tokens (
    id             TEXT   NOT NULL PRIMARY KEY,
    digest         TEXT   NOT NULL,
    pepper_version BIGINT NOT NULL,
    node           TEXT   NOT NULL, -- empty: any name
    created_at     BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    revoked_at     BIGINT NOT NULL,
    revoked_by     TEXT   NOT NULL
);

-- A Node's name belongs to the join token that used it first.
CREATE TABLE node_claims (
    node       TEXT   NOT NULL PRIMARY KEY,
    token_id   TEXT   NOT NULL,
    claimed_at BIGINT NOT NULL
);

-- The last generation given to each Node. Rows are never deleted: a number must not come back.
CREATE TABLE generations (
    node       TEXT   NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL
);
