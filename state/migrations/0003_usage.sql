-- What runs used. Durations are microseconds, flags 0 or 1.

-- +goose Up

CREATE TABLE usage_runs (
    run_id         TEXT   NOT NULL,
    started_at     BIGINT NOT NULL,
    day            BIGINT NOT NULL, -- of started_at in UTC, as yyyymmdd
    key_id         TEXT   NOT NULL, -- empty: no key was asked for
    principal      TEXT   NOT NULL,
    route          TEXT   NOT NULL,
    operation      TEXT   NOT NULL,
    node           TEXT   NOT NULL, -- empty: no Node took it
    provider       TEXT   NOT NULL,
    model          TEXT   NOT NULL,
    outcome        BIGINT NOT NULL, -- as execution.Outcome counts
    code           BIGINT NOT NULL, -- as execution.Code counts
    status         BIGINT NOT NULL,
    attempts       BIGINT NOT NULL,
    stream         BIGINT NOT NULL,
    queue_us       BIGINT NOT NULL,
    first_token_us BIGINT NOT NULL, -- 0: none came
    duration_us    BIGINT NOT NULL,
    input          BIGINT NOT NULL,
    output         BIGINT NOT NULL,
    cached         BIGINT NOT NULL,
    reasoning      BIGINT NOT NULL,
    known          BIGINT NOT NULL,
    estimated      BIGINT NOT NULL,
    PRIMARY KEY (started_at, run_id)
);

CREATE INDEX usage_runs_by_key ON usage_runs (key_id, started_at, run_id);

-- Tokens of a key in a calendar month in UTC: the sum of its rows in usage_runs, of those that were pruned too.
CREATE TABLE usage_months (
    key_id TEXT   NOT NULL,
    month  BIGINT NOT NULL, -- yyyymm
    tokens BIGINT NOT NULL,
    PRIMARY KEY (key_id, month)
);
