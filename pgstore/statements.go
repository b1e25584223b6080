package pgstore

import "strings"

// The statements. Each is one round trip, and a transaction of its own unless a
// TxStore runs it in one.
//
// What asks whether a time has come goes by statement_timestamp(): now() would be
// that of the transaction's begin, which may be long ago. A statement may have begun
// before a row that it sees was written, because it waited for a lock, or for the
// processor. So a time that is found not to have come may have come by then, never
// the other way around. What is told of a row (how much is left), and a lease that
// begins, go by clock_timestamp() when the row is there or locked: else more than the
// whole lease could be left, and one that begins be over already.
//
// A row is
//
//	expired   expires <= statement_timestamp(), whatever else it is: the key is free
//	done      lapses IS NULL
//	running   lapses > statement_timestamp()
//	orphaned  otherwise
//
// unless begins is set: then its holder's transaction locks it, and says by that
// that it is running. If it is not locked it counts as running until begins, for
// its holder may be about to lock it, and from then on the key is free; or, if it was
// taken over (holder > 1), the orphan again that it was.
type statements struct {
	look, claim, take, renew, complete, release, state string
	renewFree, completeFree, releaseFree               string
	lock, record, lapse, reclaim, giveUp, settle       string
	flag                                               string
	list, show, ask, resolve, drop, purge              string
	sweep                                              string
}

func newStatements(table string) *statements {
	fill := func(text string) string {
		return strings.NewReplacer(
			"{table}", table,
			"{name}", strings.ReplaceAll(table, "'", "''"),
			"{now}", "statement_timestamp()",
			"{clock}", "clock_timestamp()",
			"{notify}", "coalesce(CASE WHEN waited THEN pg_notify('oncehttp_' || tableoid, id::text) IS NULL END, false)",
		).Replace(strings.Join(strings.Fields(text), " ")) // as few bytes as can be, where they are sent each time
	}
	const held = "id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL"
	renew := change{`UPDATE {table} SET lapses = clock + $3::int8 * interval '1us', begins = NULL,
			expires = clock + greatest($3::int8, keep) * interval '1us'`,
		held + " AND expires > {now}", "CASE WHEN $3::int8 = 0 THEN {notify} ELSE false END"}
	// A completion counts from when it was asked for: to lock its row first would
	// cost a record of its own in the server's log.
	complete := change{`UPDATE {table} SET lapses = NULL, begins = NULL, keep = NULL,
			head = $3::bytea, body = $4::bytea, expires = {now} + $5::int8 * interval '1us'`,
		held + " AND expires > {now}", "{notify}"}
	release := change{`DELETE FROM {table}`, held, "{notify}"}
	const (
		orphaned = "(lapses <= {now} AND begins IS NULL OR begins <= {now} AND holder > 1)"
		orphan   = "id = $1::uuid AND " + orphaned + " AND expires > {now}"
	)
	return &statements{
		look: fill(`SELECT
			coalesce(obj_description(to_regclass('{name}')::oid, 'pg_class'), CASE WHEN to_regclass('{name}') IS NULL THEN 'none' ELSE '' END),
			current_setting('server_version_num')::int8, current_setting('synchronous_commit'), current_setting('fsync'),
			coalesce(to_regclass('{name}')::oid::int8, 0)`),

		// A key that is free is taken; of one that is not, the row is returned.
		// None of both: somebody else took it at the same time. A key that is done
		// costs one look into the index and no lock, no write, no transaction id.
		claim: fill(`WITH old AS MATERIALIZED (
				SELECT {clock} AS clock, key = $7::bytea AS same, token, ident, expires, lapses, begins, holder, head, body
				FROM {table} WHERE id = $1::uuid
			), new AS (
				INSERT INTO {table} (id, key, token, ident, born, lapses, begins, keep, expires, holder)
				SELECT $1::uuid, $7::bytea, $2::bytea, $3::bytea, {now}, {now} + $4::int8 * interval '1us', {now} + $6::int8 * interval '1us',
					$5::int8, {now} + greatest($4::int8, $5::int8) * interval '1us', 1
				WHERE NOT EXISTS (SELECT FROM old)
				ON CONFLICT (id) DO NOTHING
				RETURNING token, expires, lapses
			)
			SELECT true, true, {clock}, token, NULL::bytea, expires, lapses, NULL::timestamptz, 1, NULL::bytea, NULL::bytea FROM new
			UNION ALL
			SELECT false, same, clock, token, ident, expires, lapses, begins, holder, head, body FROM old`),

		// Takes a row that claim found expired, lapsed or the caller's own. It
		// never waits for a lock: a transaction may hold one for minutes.
		take: fill(`WITH mine AS MATERIALIZED (
				SELECT expires <= {now} OR token <> $2::bytea AND begins IS NOT NULL AND holder = 1 AS fresh FROM {table}
				WHERE id = $1::uuid AND (expires <= {now} OR lapses IS NOT NULL AND
					(token = $2::bytea OR begins <= {now} AND holder = 1 OR $7::bool AND ` + orphaned + `))
				FOR UPDATE SKIP LOCKED
			)
			UPDATE {table} SET
				token = $2::bytea, ident = CASE WHEN fresh THEN $3::bytea ELSE ident END,
				born = CASE WHEN fresh THEN {now} ELSE born END,
				holder = CASE WHEN fresh THEN 1 WHEN token = $2::bytea THEN holder ELSE holder + 1 END,
				waited = CASE WHEN fresh THEN NULL ELSE waited END, head = NULL, body = NULL,
				lapses = {now} + $4::int8 * interval '1us', begins = {now} + $6::int8 * interval '1us',
				keep = $5::int8, expires = {now} + greatest($4::int8, $5::int8) * interval '1us'
			FROM mine WHERE id = $1::uuid
			RETURNING ident, holder`),

		renew:    fill(timed(renew, "FOR UPDATE")),
		complete: fill(plain(complete)),
		release:  fill(plain(release)),

		// The same for rows that a transaction may hold: they do not wait for it.
		renewFree:    fill(timed(renew, "FOR UPDATE SKIP LOCKED")),
		completeFree: fill(skip(complete)),
		releaseFree:  fill(skip(release)),

		// What renew, complete and release found instead, when they found nothing.
		state: fill(`SELECT token = $2::bytea, lapses IS NULL FROM {table} WHERE id = $1::uuid AND expires > {now}`),

		// From here on: of a transaction that holds a claim.
		lock: fill("SELECT true FROM {table} WHERE " + held + " FOR UPDATE SKIP LOCKED"),

		record: fill(plain(change{complete.action, held, complete.returning})),

		lapse: fill(plain(change{`UPDATE {table} SET lapses = {now}, begins = NULL, expires = {now} + $3::int8 * interval '1us'`,
			held, "{notify}"})),

		reclaim: fill(skip(change{`UPDATE {table} SET lapses = greatest(lapses, {now} + $3::int8 * interval '1us'),
				expires = greatest(expires, {now} + $3::int8 * interval '1us'), begins = {now} + $3::int8 * interval '1us'`,
			held + " AND expires > {now}", "true"})),

		// Gives up a claim whose work was rolled back. To free a key that was taken
		// over would be to forget that an earlier holder vanished.
		giveUp: fill(`WITH mine AS MATERIALIZED (
				SELECT holder > 1 AS taken FROM {table} WHERE ` + held + ` FOR UPDATE SKIP LOCKED
			), freed AS (
				DELETE FROM {table} USING mine WHERE id = $1::uuid AND NOT taken RETURNING {notify}
			), orphaned AS (
				UPDATE {table} SET lapses = {now}, begins = NULL, expires = {now} + keep * interval '1us'
				FROM mine WHERE id = $1::uuid AND taken RETURNING {notify}
			)
			SELECT * FROM freed UNION ALL SELECT * FROM orphaned`),

		// How the transaction ended that held a row: NULL while it still does. It
		// is the locked version of the row that tells, not the one that this
		// statement's snapshot has.
		settle: fill(`WITH mine AS MATERIALIZED (
				SELECT lapses IS NULL AS done FROM {table} WHERE id = $1::uuid AND token = $2::bytea FOR UPDATE SKIP LOCKED
			)
			SELECT token = $2::bytea, done FROM {table} LEFT JOIN mine ON true WHERE id = $1::uuid`),

		// Looks at a key for those who wait, and flags its row for notification if
		// $2 asks for it and no transaction holds it.
		flag: fill(`WITH was AS MATERIALIZED (
				SELECT {clock} AS clock, lapses, begins, waited FROM {table} WHERE id = $1::uuid AND expires > {now}
			), mine AS MATERIALIZED (
				SELECT true FROM {table} WHERE id = $1::uuid AND $2::bool AND begins IS NULL AND lapses > {now} AND waited IS NULL
				FOR UPDATE SKIP LOCKED
			), flagged AS (
				UPDATE {table} SET waited = true FROM mine WHERE id = $1::uuid RETURNING true
			)
			SELECT clock, lapses, begins, waited IS TRUE OR EXISTS (SELECT FROM flagged) FROM was`),

		list: fill(`SELECT {clock}, id::text, key, ident, born, expires, lapses, begins, holder, NULL::bytea, NULL::bytea FROM {table}
			WHERE key > $1::bytea AND expires > {now} AND born <= {now} - $2::int8 * interval '1us' AND CASE $3::int8
				WHEN 0 THEN true
				WHEN 2 THEN lapses > {now} OR begins IS NOT NULL
				WHEN 3 THEN lapses IS NULL
				WHEN 4 THEN ` + orphaned + ` END
			ORDER BY key LIMIT $4::int8`),

		show: fill(`SELECT {clock}, id::text, key, ident, born, expires, lapses, begins, holder, head, body FROM {table}
			WHERE id = $1::uuid AND expires > {now}`),

		// Finds a row that a transactional claim left behind when it ended. A
		// transaction that goes on holds a lock that conflicts with this one.
		ask: fill(`SELECT true FROM {table} WHERE id = $1::uuid AND begins <= {now} FOR KEY SHARE SKIP LOCKED`),

		resolve: fill(skip(change{`UPDATE {table} SET token = '', lapses = NULL, keep = NULL, head = $2::bytea, body = $3::bytea,
				expires = {now} + coalesce($4::int8, keep) * interval '1us'`, orphan, "{notify}"})),
		drop: fill(skip(change{`DELETE FROM {table}`, orphan, "{notify}"})),
		purge: fill(skip(change{`DELETE FROM {table}`,
			"id = $1::uuid AND (lapses IS NULL OR " + orphaned + ") AND expires > {now}", "{notify}"})),

		// Forgets what has expired in some pages of the table, from page $1 to
		// before page $2, and tells how many pages there are.
		sweep: fill(`WITH dead AS MATERIALIZED (
				SELECT ctid FROM {table}
				WHERE ctid >= ('(' || $1::int8 || ',0)')::tid AND ctid < ('(' || $2::int8 || ',0)')::tid AND expires <= {now}
				LIMIT $3::int8 FOR UPDATE SKIP LOCKED
			), gone AS (
				DELETE FROM {table} WHERE ctid = ANY (ARRAY (SELECT ctid FROM dead)) RETURNING true
			)
			SELECT (SELECT count(*) FROM gone), pg_relation_size(to_regclass('{name}')) / current_setting('block_size')::int8`),
	}
}

// A change is a statement that changes a row in some state.
type change struct{ action, where, returning string }

func plain(c change) string { return c.action + " WHERE " + c.where + " RETURNING " + c.returning }

// skip is plain, but for a row that somebody has locked it does nothing. Plain
// would wait, even for a row that is no more what where says: the server looks at
// its new version only after it has locked that too.
func skip(c change) string {
	from := " FROM mine "
	if strings.HasPrefix(c.action, "DELETE") {
		from = " USING mine "
	}
	return c.mine("FOR UPDATE SKIP LOCKED") + c.action + from + "WHERE id = $1::uuid RETURNING " + c.returning
}

// timed is an update whose action may use clock: a time at which the row was locked,
// and had not expired.
func timed(c change, lock string) string {
	return c.mine(lock) + ", timed AS MATERIALIZED (SELECT {clock} AS clock FROM mine) " +
		c.action + " FROM timed WHERE id = $1::uuid AND expires > clock RETURNING " + c.returning
}

func (c change) mine(lock string) string {
	return "WITH mine AS MATERIALIZED (SELECT true FROM {table} WHERE " + c.where + " " + lock + ") "
}
