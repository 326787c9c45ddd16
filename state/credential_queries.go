package state

// The queries about credentials, the Nodes that may use them and the audit, as in queries.go. That of AuditEntries is
// composed of constants alone.
const (
	profileColumns = `profiles.name, profiles.header, profiles.base_urls, profiles.updated_at, profiles.updated_by`

	queryProfile = `SELECT ` + profileColumns + ` FROM profiles WHERE name = $1`

	queryProfiles = `SELECT ` + profileColumns + ` FROM profiles ORDER BY name`

	putProfile = `INSERT INTO profiles (name, header, base_urls, updated_at, updated_by) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (name) DO UPDATE SET header = excluded.header, base_urls = excluded.base_urls,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`

	deleteProfile = `DELETE FROM profiles WHERE name = $1 RETURNING name`

	slotColumns = `slots.name, slots.profile, slots.revision, slots.master_key, slots.sealed, slots.sealed_revision,
		slots.enabled, slots.revoked, slots.needs_rotation, slots.updated_at, slots.updated_by`

	querySlot = `SELECT ` + slotColumns + ` FROM slots WHERE name = $1`

	querySlots = `SELECT ` + slotColumns + ` FROM slots ORDER BY name`

	querySlotsOfProfile = `SELECT ` + slotColumns + ` FROM slots WHERE profile = $1 ORDER BY name`

	querySlotsOfMasterKey = `SELECT ` + slotColumns + ` FROM slots WHERE master_key = $1 AND name > $2 ORDER BY name LIMIT $3`

	// Both in one statement: a profile that changes at the same time must not be mixed with a value of before.
	queryCredential = `SELECT ` + slotColumns + `, ` + profileColumns + ` FROM slots
		JOIN profiles ON profiles.name = slots.profile WHERE slots.name = $1`

	putSlot = `INSERT INTO slots (name, profile, revision, master_key, sealed, sealed_revision,
			enabled, revoked, needs_rotation, updated_at, updated_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		ON CONFLICT (name) DO UPDATE SET profile = excluded.profile, revision = excluded.revision,
			master_key = excluded.master_key, sealed = excluded.sealed, sealed_revision = excluded.sealed_revision,
			enabled = excluded.enabled, revoked = excluded.revoked, needs_rotation = excluded.needs_rotation,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`

	rewrapSlot = `UPDATE slots SET master_key = $2, sealed = $3 WHERE name = $1`

	deleteSlot = `DELETE FROM slots WHERE name = $1`

	queryMasterKeyUses = `SELECT master_key, COUNT(*) FROM slots GROUP BY master_key ORDER BY master_key`

	nextRevision = `INSERT INTO slot_revisions (slot, revision) VALUES ($1, 1)
		ON CONFLICT (slot) DO UPDATE SET revision = slot_revisions.revision + 1
		WHERE slot_revisions.revision < 9223372036854775807
		RETURNING revision`

	queryRevisions = `SELECT slot, revision FROM slot_revisions`

	nodeAllowColumns = `node, profiles, slots, updated_at, updated_by`

	queryNodeAllows = `SELECT ` + nodeAllowColumns + ` FROM node_allows ORDER BY node`

	queryNodeAllowed = `SELECT ` + nodeAllowColumns + `, CASE WHEN EXISTS (
			SELECT 1 FROM node_denials WHERE kind = 'node' AND name = $1 OR kind = 'serial' AND name = $2) THEN 1 ELSE 0 END
		FROM node_allows WHERE node = $1`

	putNodeAllow = `INSERT INTO node_allows (` + nodeAllowColumns + `) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (node) DO UPDATE SET profiles = excluded.profiles, slots = excluded.slots,
			updated_at = excluded.updated_at, updated_by = excluded.updated_by`

	deleteNodeAllow = `DELETE FROM node_allows WHERE node = $1 RETURNING node`

	queryDenials = `SELECT kind, name, denied_at, denied_by FROM node_denials ORDER BY kind, name`

	// The first denial stays, as a first revocation does.
	putDenial = `INSERT INTO node_denials (kind, name, denied_at, denied_by) VALUES ($1, $2, $3, $4)
		ON CONFLICT (kind, name) DO NOTHING RETURNING name`

	deleteDenial = `DELETE FROM node_denials WHERE kind = $1 AND name = $2 RETURNING name`

	auditColumns = `id, at, actor, action, outcome, reason, subject, lease, run, attempt, principal, route, slot, profile,
		revision, node, generation, target, expires_at, key_id, join_token, source, session, detail`

	insertAudit = `INSERT INTO audit (` + auditColumns + `)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
			$20, $21, $22, $23, $24)
		ON CONFLICT (id) DO NOTHING`

	queryAudit = `SELECT ` + auditColumns + ` FROM audit WHERE at >= $1 AND at < $2`

	auditBefore = ` AND (at, id) < ($3, $4)`

	// queryTokenUsed finds that the join token $1 got the Node's name $2 after $3. SQLite uses the partial index
	// audit_by_join_token only where the query repeats its condition.
	queryTokenUsed = `SELECT id FROM audit WHERE join_token = $1 AND join_token <> '' AND at > $3 AND node = $2 AND action = 25 LIMIT 1`

	auditOrder = ` ORDER BY at DESC, id DESC LIMIT `

	// Changes of the state stay. The numbers are those of AuditLeaseIssued and AuditLeaseRefused, of AuditJoinTokenUsed to
	// AuditRoutesApplied, and of AuditSignedIn to AuditAdminRefused.
	pruneAudit = `DELETE FROM audit WHERE id IN (
			SELECT id FROM audit WHERE at < $1 AND action IN (1, 2, 25, 26, 27, 28, 29, 30, 33, 34, 35, 36) ORDER BY at, id LIMIT $2)`
)
