// Package state keeps what must outlast the Edge's process and what several Edges will share: API keys and their
// limits, join tokens, who owns a Node's name, the generations of its sessions, and what runs used. It stands on the
// ground floor and knows neither HTTP nor the tunnel.
//
// # What may enter
//
// Facts that would do harm if a crash lost them, and facts that two Edges must agree on. What changes per request
// (queues, places, streams) stays out, with two exceptions that are written in the background: when a key was last used,
// and usage, one row a run, which gateway/meter brings in batches. A row of usage holds names and numbers; nothing that
// a client or a model said, and no address. Rows are pruned; the sums of a key's tokens a month, kept in the transaction
// that adds the rows, stay.
//
// # The database
//
// One schema and one set of queries (queries.go, usage_queries.go), in the SQL that SQLite and PostgreSQL both
// understand: $1 placeholders, INSERT .. ON CONFLICT DO UPDATE .. RETURNING, TEXT and BIGINT columns, times as
// milliseconds since 1970 in UTC with 0 for "never". Only database.go knows which engine is behind it. SQLite runs in WAL mode with
// synchronous=FULL, one writing connection and a few reading ones; a command such as "iop key create" may open the same
// file while an Edge runs. The file must lie on a local disk: WAL needs shared memory. Migrations only ever add, so an
// older Edge that still runs keeps working, but a schema that is newer than the binary is refused at Open.
//
// # Security model
//
// Beside the database lie two files of mode 0600, and a looser mode is refused: "pepper", the HMAC key of the stored
// digests, and "admin-token". The database holds no presentable secret: of each token it has HMAC-SHA-256(pepper, token).
// Tokens carry 190 random bits, so a slow password hash would cost each request and gain nothing. A copied database
// neither authenticates anyone nor allows guesses to be checked without the pepper. What this does not defend: someone
// who reads the process's memory, or database and pepper together and also has tokens to test, and someone who may
// write to the state directory.
//
// # What it never does
//
// It never logs or returns a stored secret, never waits for a disk on the path of a request whose key is in the cache,
// and never hands out a generation twice.
package state
