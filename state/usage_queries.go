package state

// The queries about usage, as in queries.go. That of a summary is composed, of constants alone: what is asked for
// chooses among them and never becomes a part of the text.
const (
	runColumns = `started_at, run_id, source, day, outcome, details, queue_us, first_token_us, duration_us,
		input, output, cached, reasoning, session_id`

	sourceColumns = `key_id, principal, route, operation, node, provider, model`

	// What a record is read from.
	usageColumns = `run_id, started_at, ` + sourceColumns + `, outcome, details, queue_us, first_token_us, duration_us,
		input, output, cached, reasoning, session_id`

	insertUsage = `INSERT INTO usage_runs (` + runColumns + `)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
		ON CONFLICT (started_at, run_id) DO NOTHING`

	querySource = `SELECT id, last_day FROM usage_sources WHERE key_id = $1 AND principal = $2 AND route = $3
		AND operation = $4 AND node = $5 AND provider = $6 AND model = $7`

	insertSource = `INSERT INTO usage_sources (id, ` + sourceColumns + `, last_day)
		SELECT COALESCE(MAX(id), 0) + 1, CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS TEXT),
			CAST($5 AS TEXT), CAST($6 AS TEXT), CAST($7 AS TEXT), CAST($8 AS BIGINT) FROM usage_sources
		RETURNING id`

	touchSource = `UPDATE usage_sources SET last_day = $2 WHERE id = $1 AND last_day < $2`

	// Where a run of before that day is left, whose record came late, the next pruning has another look.
	pruneSources = `DELETE FROM usage_sources WHERE last_day < $1
		AND NOT EXISTS (SELECT 1 FROM usage_runs WHERE started_at < $2)`

	addMonthTokens = `INSERT INTO usage_months (key_id, month, tokens) VALUES ($1, $2, $3)
		ON CONFLICT (key_id, month) DO UPDATE SET tokens = usage_months.tokens + excluded.tokens`

	queryMonthTokens = `SELECT tokens FROM usage_months WHERE key_id = $1 AND month = $2`

	// A run that ended before it was served has no first token and no part in the mean of those that have.
	usageSums = `COUNT(*) AS runs,
		COALESCE(SUM(CASE WHEN outcome = 1 THEN 1 ELSE 0 END), 0) AS completed,
		COALESCE(SUM(CASE WHEN outcome = 2 THEN 1 ELSE 0 END), 0) AS failed,
		COALESCE(SUM(CASE WHEN outcome = 3 THEN 1 ELSE 0 END), 0) AS cancelled,
		COALESCE(SUM(CASE WHEN outcome = 4 THEN 1 ELSE 0 END), 0) AS rejected,
		CAST(COALESCE(SUM(input), 0) AS BIGINT) AS inputs, CAST(COALESCE(SUM(output), 0) AS BIGINT) AS outputs,
		CAST(COALESCE(SUM(cached), 0) AS BIGINT) AS hits, CAST(COALESCE(SUM(reasoning), 0) AS BIGINT) AS thoughts,
		CAST(COALESCE(SUM(queue_us), 0) AS BIGINT) AS queues, CAST(COALESCE(SUM(duration_us), 0) AS BIGINT) AS durations,
		CAST(COALESCE(SUM(first_token_us), 0) AS BIGINT) AS first_tokens,
		COALESCE(SUM(CASE WHEN first_token_us > 0 THEN 1 ELSE 0 END), 0) AS answered,
		CAST(COALESCE(SUM(details / 4 % 2), 0) AS BIGINT) AS guessed`

	// The sums of usageSums.
	usageSumsOfSums = `CAST(SUM(runs) AS BIGINT), CAST(SUM(completed) AS BIGINT), CAST(SUM(failed) AS BIGINT),
		CAST(SUM(cancelled) AS BIGINT), CAST(SUM(rejected) AS BIGINT), CAST(SUM(inputs) AS BIGINT),
		CAST(SUM(outputs) AS BIGINT), CAST(SUM(hits) AS BIGINT), CAST(SUM(thoughts) AS BIGINT), CAST(SUM(queues) AS BIGINT),
		CAST(SUM(durations) AS BIGINT), CAST(SUM(first_tokens) AS BIGINT), CAST(SUM(answered) AS BIGINT), CAST(SUM(guessed) AS BIGINT)`

	usageFrom = ` FROM usage_runs`

	// There is exactly one source for each run.
	usageSources = ` JOIN usage_sources ON usage_sources.id = source`

	usageBetween = ` WHERE started_at >= $1 AND started_at < $2`

	usageOfSources = ` AND source IN (SELECT id FROM usage_sources WHERE `

	usageOrder = ` ORDER BY started_at, run_id LIMIT `

	usageAfter = ` AND (started_at, run_id) > ($3, $4)`

	pruneUsage = `DELETE FROM usage_runs WHERE (started_at, run_id) IN (
			SELECT started_at, run_id FROM usage_runs WHERE started_at < $1 ORDER BY started_at, run_id LIMIT $2)`
)
