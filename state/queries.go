package state

// Every query of the package, in SQL that SQLite and PostgreSQL both understand. A parameter whose type PostgreSQL
// can't infer from a column beside it is cast.
const (
	queryPeppers = `SELECT version, proof FROM peppers ORDER BY version`

	insertPepper = `INSERT INTO peppers (version, proof) VALUES ($1, $2)`

	keyColumns = `id, digest, pepper_version, name, owner, routes, rpm, tpm, concurrency,
		monthly_tokens, weight, priority, created_at, expires_at, last_used_at, revoked_at, revoked_by`

	insertKey = `INSERT INTO api_keys (` + keyColumns + `)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 0, 0, '')
		ON CONFLICT DO NOTHING RETURNING id`

	// What is NULL stays as it is. One statement, so that of two changes at once neither undoes the other.
	updateKey = `UPDATE api_keys SET
			name = COALESCE(CAST($2 AS TEXT), name),
			owner = COALESCE(CAST($3 AS TEXT), owner),
			routes = COALESCE(CAST($4 AS TEXT), routes),
			rpm = COALESCE(CAST($5 AS BIGINT), rpm),
			tpm = COALESCE(CAST($6 AS BIGINT), tpm),
			concurrency = COALESCE(CAST($7 AS BIGINT), concurrency),
			monthly_tokens = COALESCE(CAST($8 AS BIGINT), monthly_tokens),
			weight = COALESCE(CAST($9 AS BIGINT), weight),
			priority = COALESCE(CAST($10 AS BIGINT), priority),
			expires_at = COALESCE(CAST($11 AS BIGINT), expires_at),
			shares_name = COALESCE(CAST($12 AS BIGINT), shares_name)
		WHERE id = $1 RETURNING ` + keyColumns

	queryKey = `SELECT ` + keyColumns + ` FROM api_keys WHERE id = $1`

	queryKeysCalled = `SELECT ` + keyColumns + ` FROM api_keys WHERE id = $1 OR name = $1 ORDER BY created_at, id`

	queryKeyNames = `SELECT id, name FROM api_keys`

	// Names that several keys have that are live at the time $1.
	queryKeyNamesShared = `SELECT name FROM api_keys WHERE revoked_at = 0 AND (expires_at = 0 OR expires_at > $1)
		GROUP BY name HAVING COUNT(*) > 1 ORDER BY name LIMIT 100`

	// The key other than $3 that is live at the time $2 and has the name $1: of several the one that holds it.
	queryKeyNameHolder = `SELECT id FROM api_keys WHERE name = $1 AND revoked_at = 0 AND (expires_at = 0 OR expires_at > $2)
		AND id <> $3 ORDER BY shares_name, created_at, id LIMIT 1`

	// Keys that have expired by the time $2 hold a name no longer.
	releaseKeyName = `UPDATE api_keys SET shares_name = 1
		WHERE name = $1 AND revoked_at = 0 AND shares_name = 0 AND expires_at <> 0 AND expires_at <= $2`

	queryKeys = `SELECT ` + keyColumns + ` FROM api_keys ORDER BY created_at, id`

	// The first revocation stays: a second one must not hide who made it and when.
	revokeKey = `UPDATE api_keys SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at = 0 RETURNING name`

	queryKeyExists = `SELECT id FROM api_keys WHERE id = $1`

	touchKey = `UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND last_used_at < $2`

	joinTokenColumns = `id, digest, pepper_version, node, created_at, expires_at, labels, models, max_nodes, max_sessions,
		max_models, max_inventory_bytes, revoked_at`

	insertJoinToken = `INSERT INTO join_tokens (` + joinTokenColumns + `, revoked_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 0, '')
		ON CONFLICT (id) DO NOTHING RETURNING id`

	queryJoinToken = `SELECT ` + joinTokenColumns + ` FROM join_tokens WHERE id = $1`

	queryJoinTokens = `SELECT ` + joinTokenColumns + ` FROM join_tokens ORDER BY created_at, id`

	revokeJoinToken = `UPDATE join_tokens SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at = 0 RETURNING node`

	queryJoinTokenExists = `SELECT id FROM join_tokens WHERE id = $1`

	// One statement decides. The token must be valid for this name: bound to it, or bound to none while no valid token is
	// bound to the name in whatever case (two names that differ in case alone look like one in every list). And the name
	// must be free, already the token's own, or held by a token that is no longer valid or has less right to it: one that
	// is not bound. A token that has not the name must have room for it: $4 is since when a name was used that counts. No
	// row comes back when one of these fails.
	claimNode = `INSERT INTO node_claims (node, token_id, claimed_at, used_at)
		SELECT CAST($1 AS TEXT), t.id, CAST($3 AS BIGINT), CAST($3 AS BIGINT) FROM join_tokens t
			WHERE t.id = $2 AND (t.node = $1 OR t.node = '' AND NOT EXISTS (` + reservation + `))
				AND t.revoked_at = 0 AND (t.expires_at = 0 OR t.expires_at > $3)
				AND (EXISTS (SELECT 1 FROM node_claims own WHERE own.node = $1 AND own.token_id = t.id)
					OR (SELECT COUNT(*) FROM node_claims used WHERE used.token_id = t.id AND used.used_at > $4) < t.max_nodes)
		ON CONFLICT (node) DO UPDATE SET
			used_at = excluded.used_at,
			claimed_at = CASE WHEN node_claims.token_id = excluded.token_id THEN node_claims.claimed_at
				ELSE excluded.claimed_at END,
			token_id = excluded.token_id
		WHERE node_claims.token_id = excluded.token_id OR EXISTS (
			SELECT 1 FROM join_tokens b WHERE b.id = excluded.token_id AND b.node = excluded.node)
		OR NOT EXISTS (
			SELECT 1 FROM join_tokens o WHERE o.id = node_claims.token_id
				AND o.revoked_at = 0 AND (o.expires_at = 0 OR o.expires_at > $3))
		RETURNING claimed_at`

	// reservation finds the valid tokens that are bound to the name $1 at the time $3.
	reservation = `SELECT 1 FROM join_tokens r WHERE LOWER(r.node) = LOWER(CAST($1 AS TEXT))
		AND r.revoked_at = 0 AND (r.expires_at = 0 OR r.expires_at > $3)`

	// queryNodeHolder finds the valid token that has the name $1 at the time $2.
	queryNodeHolder = `SELECT c.token_id FROM node_claims c JOIN join_tokens o ON o.id = c.token_id
		WHERE c.node = $1 AND o.revoked_at = 0 AND (o.expires_at = 0 OR o.expires_at > $2)`

	queryNodeReserved = `SELECT CASE WHEN EXISTS (
		SELECT 1 FROM join_tokens r WHERE LOWER(r.node) = LOWER(CAST($1 AS TEXT))
			AND r.revoked_at = 0 AND (r.expires_at = 0 OR r.expires_at > $2)) THEN 1 ELSE 0 END`

	putNodeSeen = `INSERT INTO nodes_seen (node, seen_at, cause, drained_boot, models, size)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (node) DO UPDATE SET seen_at = excluded.seen_at, cause = excluded.cause,
			drained_boot = excluded.drained_boot, models = excluded.models, size = excluded.size`

	// The models of before stay.
	touchNodeSeen = `INSERT INTO nodes_seen (node, seen_at, cause, drained_boot, models, size)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (node) DO UPDATE SET seen_at = excluded.seen_at, cause = excluded.cause,
			drained_boot = excluded.drained_boot`

	deleteNodeSeen = `DELETE FROM nodes_seen WHERE node = $1`

	pruneNodesSeen = `DELETE FROM nodes_seen WHERE seen_at < $1`

	boundNodesSeenCount = `DELETE FROM nodes_seen WHERE node IN (SELECT node FROM (
		SELECT node, ROW_NUMBER() OVER (ORDER BY seen_at DESC, node) AS place FROM nodes_seen) AS ranked WHERE place > $1)`

	// Those with the fewest bytes keep their models.
	boundNodesSeenModels = `UPDATE nodes_seen SET models = '[]', size = 2 WHERE size > 2 AND node IN (SELECT node FROM (
		SELECT node, SUM(size) OVER (ORDER BY size, node) AS total FROM nodes_seen) AS summed WHERE total > $1)`

	queryNodesSeen = `SELECT node, seen_at, cause, drained_boot, models FROM nodes_seen
		WHERE seen_at >= $1 ORDER BY seen_at DESC, node`

	// $2 is what the Node says it has seen, $3 how far above ours that may be to count.
	nextGeneration = `INSERT INTO generations (node, generation)
		VALUES ($1, CASE WHEN CAST($2 AS BIGINT) <= CAST($3 AS BIGINT) THEN CAST($2 AS BIGINT) + 1 ELSE 1 END)
		ON CONFLICT (node) DO UPDATE SET generation = CASE
			WHEN $2 > generations.generation AND $2 - generations.generation <= $3 THEN $2 + 1
			ELSE generations.generation + 1 END
		WHERE generations.generation < 9223372036854775807
		RETURNING generation`
)
