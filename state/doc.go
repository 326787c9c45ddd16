// Package state keeps what must outlast the Edge's process and what several Edges will share: API keys and their
// limits, join tokens, who owns a Node's name, the generations of its sessions, what runs used, and for managed mode the
// credentials of providers, which Nodes may have them, and the audit of both. It stands on the ground floor and knows
// neither HTTP nor the tunnel.
//
// # What may enter
//
// Facts that would do harm if a crash lost them, and facts that two Edges must agree on. What changes per request
// (queues, places, streams) stays out, with four exceptions that are written in the background: when a key was last
// used; which Nodes were connected and what they offered, which gateway/registry brings; usage, one row a run, which
// gateway/meter brings in batches; and the audit of leases, one row a lease, which waits here for half a second. A row of usage holds names and numbers; nothing that a client or a model said, and no
// address. Rows are pruned; the sums of a key's tokens a month, kept in the transaction that adds the rows, stay, and so
// do audit rows about changes, each written in the transaction that makes the change.
//
// # The database
//
// One schema and one set of queries (queries.go, usage_queries.go, credential_queries.go), in the SQL that SQLite and PostgreSQL both
// understand: $1 placeholders, INSERT .. ON CONFLICT DO UPDATE .. RETURNING, TEXT and BIGINT columns, times as
// milliseconds since 1970 in UTC with 0 for "never". Tests hold both against a PostgreSQL server, although no such engine is
// built in yet; one table's WITHOUT ROWID is left out there. Only database.go knows which engine is behind it. SQLite runs in WAL mode with
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
// A provider's credential must be had back, so it is sealed instead: AES-256-GCM under a master key, which the operator
// keeps in a file elsewhere. A copied database without that file gives nothing but names, lengths and times; with it,
// everything. The seal is bound to profile, slot and revision, so a row that is moved, mixed or set back in part does
// not open. What this does not defend: someone who may write to the database can put back a whole older row, or change
// a profile's base URLs. The Nodes' minimum revisions and their own lists of targets stand against that, not this
// package.
//
// Each change of a slot takes the next revision from a table whose rows are never deleted, in one transaction with the
// change. Whatever stops a credential works without a master key; whatever gives one out reads the database each time
// and fails closed. RevokeSlot cannot reach a value that is already with a Node or with somebody who took it there: only
// the provider can make that useless.
//
// # What it never does
//
// It never logs a stored secret nor returns one but by OpenCredential, never waits for a disk on the path of a request
// whose key is in the cache, and never hands out a generation or a revision twice.
package state
