-- Credentials of providers, who may get a lease of one, and the record of both. As before: times are milliseconds, flags
-- 0 or 1. No column holds a value in the open.

-- +goose Up

CREATE TABLE profiles (
    name       TEXT   NOT NULL PRIMARY KEY,
    header     TEXT   NOT NULL, -- as state.Header is written
    base_urls  TEXT   NOT NULL, -- JSON array
    updated_at BIGINT NOT NULL,
    updated_by TEXT   NOT NULL
);

CREATE TABLE slots (
    name            TEXT   NOT NULL PRIMARY KEY,
    profile         TEXT   NOT NULL,
    revision        BIGINT NOT NULL,
    master_key      TEXT   NOT NULL, -- the id of the key that the value is sealed under
    sealed          TEXT   NOT NULL, -- base64: nonce, ciphertext, tag
    sealed_revision BIGINT NOT NULL, -- the revision that the seal is bound to; differs from revision: not to be used
    enabled         BIGINT NOT NULL,
    revoked         BIGINT NOT NULL,
    needs_rotation  BIGINT NOT NULL, -- the value must be replaced at the provider
    updated_at      BIGINT NOT NULL,
    updated_by      TEXT   NOT NULL
);

CREATE INDEX slots_by_profile ON slots (profile, name);

-- The last revision given to each slot. Rows are never deleted: a number must not come back, also when a slot does.
CREATE TABLE slot_revisions (
    slot     TEXT   NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL
);

-- Which Nodes may connect in managed mode. Both lists are JSON arrays of globs; empty: none.
CREATE TABLE node_allows (
    node       TEXT   NOT NULL PRIMARY KEY,
    profiles   TEXT   NOT NULL,
    slots      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT   NOT NULL
);

CREATE TABLE node_denials (
    kind      TEXT   NOT NULL, -- node or serial
    name      TEXT   NOT NULL, -- the Node's name, or the certificate's serial number in lower-case hexadecimal
    denied_at BIGINT NOT NULL,
    denied_by TEXT   NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE audit (
    id         TEXT   NOT NULL PRIMARY KEY,
    at         BIGINT NOT NULL,
    actor      TEXT   NOT NULL,
    action     BIGINT NOT NULL, -- as state.AuditAction counts
    outcome    BIGINT NOT NULL, -- as state.AuditOutcome counts
    reason     TEXT   NOT NULL,
    subject    TEXT   NOT NULL,
    lease      TEXT   NOT NULL,
    run        TEXT   NOT NULL,
    attempt    BIGINT NOT NULL,
    principal  TEXT   NOT NULL,
    route      TEXT   NOT NULL,
    slot       TEXT   NOT NULL,
    profile    TEXT   NOT NULL,
    revision   BIGINT NOT NULL,
    node       TEXT   NOT NULL,
    generation BIGINT NOT NULL,
    target     TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX audit_by_time ON audit (at, id);

CREATE INDEX audit_by_slot ON audit (slot, at, id);

CREATE INDEX audit_by_lease ON audit (lease);

CREATE INDEX audit_by_run ON audit (run);
