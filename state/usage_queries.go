package state

// The queries about usage, as in queries.go. That of a summary is composed, of constants alone: what is asked for
// chooses among them and never becomes a part of the text.
const (
	usageColumns = `run_id, started_at, day, key_id, principal, route, operation, node, provider, model, outcome, code,
		status, attempts, stream, queue_us, first_token_us, duration_us, input, output, cached, reasoning, known, estimated`

	insertUsage = `INSERT INTO usage_runs (` + usageColumns + `)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
		ON CONFLICT (started_at, run_id) DO NOTHING`

	addMonthTokens = `INSERT INTO usage_months (key_id, month, tokens) VALUES ($1, $2, $3)
		ON CONFLICT (key_id, month) DO UPDATE SET tokens = usage_months.tokens + excluded.tokens`

	queryMonthTokens = `SELECT tokens FROM usage_months WHERE key_id = $1 AND month = $2`

	// A run that ended before it was served has no first token and no part in the mean of those that have.
	usageSums = `COUNT(*),
		COALESCE(SUM(CASE WHEN outcome = 1 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN outcome = 2 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN outcome = 3 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN outcome = 4 THEN 1 ELSE 0 END), 0),
		CAST(COALESCE(SUM(input), 0) AS BIGINT), CAST(COALESCE(SUM(output), 0) AS BIGINT),
		CAST(COALESCE(SUM(cached), 0) AS BIGINT), CAST(COALESCE(SUM(reasoning), 0) AS BIGINT),
		CAST(COALESCE(SUM(queue_us), 0) AS BIGINT), CAST(COALESCE(SUM(duration_us), 0) AS BIGINT),
		CAST(COALESCE(SUM(first_token_us), 0) AS BIGINT),
		COALESCE(SUM(CASE WHEN first_token_us > 0 THEN 1 ELSE 0 END), 0)`

	usageFrom = ` FROM usage_runs WHERE started_at >= $1 AND started_at < $2`

	usageOrder = ` ORDER BY started_at, run_id LIMIT `

	usageAfter = ` AND (started_at, run_id) > ($3, $4)`

	pruneUsage = `DELETE FROM usage_runs WHERE run_id IN (
			SELECT run_id FROM usage_runs WHERE started_at < $1 ORDER BY started_at, run_id LIMIT $2)`
)
