-- A run's record is written for each request, so it is small: the names that many runs share are a row of their own, what
-- is not asked for is one number, and nothing but the primary key orders the rows.

-- +goose Up

-- Whose runs, of what, on what.
CREATE TABLE usage_sources (
    id        BIGINT NOT NULL PRIMARY KEY,
    key_id    TEXT   NOT NULL, -- empty: no key was asked for
    principal TEXT   NOT NULL,
    route     TEXT   NOT NULL,
    operation TEXT   NOT NULL,
    node      TEXT   NOT NULL, -- empty: no Node took it
    provider  TEXT   NOT NULL,
    model     TEXT   NOT NULL,
    last_day  BIGINT NOT NULL, -- at least the day of each of its runs
    UNIQUE (key_id, principal, route, operation, node, provider, model)
);

INSERT INTO usage_sources (id, key_id, principal, route, operation, node, provider, model, last_day)
    SELECT ROW_NUMBER() OVER (ORDER BY key_id, principal, route, operation, node, provider, model),
        key_id, principal, route, operation, node, provider, model, MAX(day)
    FROM usage_runs GROUP BY key_id, principal, route, operation, node, provider, model;

CREATE TABLE usage_records (
    started_at     BIGINT NOT NULL,
    run_id         TEXT   NOT NULL,
    source         BIGINT NOT NULL, -- id of usage_sources
    day            BIGINT NOT NULL, -- of started_at in UTC, as yyyymmdd
    outcome        BIGINT NOT NULL, -- as execution.Outcome counts
    details        BIGINT NOT NULL, -- stream + 2 known + 4 estimated + 8 attempts + 2^19 status + 2^35 code
    queue_us       BIGINT NOT NULL,
    first_token_us BIGINT NOT NULL, -- 0: none came
    duration_us    BIGINT NOT NULL,
    input          BIGINT NOT NULL,
    output         BIGINT NOT NULL,
    cached         BIGINT NOT NULL,
    reasoning      BIGINT NOT NULL,
    PRIMARY KEY (started_at, run_id)
) WITHOUT ROWID;

INSERT INTO usage_records (started_at, run_id, source, day, outcome, details, queue_us, first_token_us, duration_us,
        input, output, cached, reasoning)
    SELECT r.started_at, r.run_id, s.id, r.day, r.outcome,
        r.stream + 2 * r.known + 4 * r.estimated + 8 * CASE WHEN r.attempts > 65535 THEN 65535 ELSE r.attempts END
            + 524288 * CASE WHEN r.status > 65535 THEN 65535 ELSE r.status END + 34359738368 * r.code,
        r.queue_us, r.first_token_us, r.duration_us, r.input, r.output, r.cached, r.reasoning
    FROM usage_runs r JOIN usage_sources s ON s.key_id = r.key_id AND s.principal = r.principal AND s.route = r.route
        AND s.operation = r.operation AND s.node = r.node AND s.provider = r.provider AND s.model = r.model
    ORDER BY r.started_at, r.run_id;

DROP TABLE usage_runs;

ALTER TABLE usage_records RENAME TO usage_runs;
