package pgstore

import "strings"

// The statements. Each is one round trip, and a transaction of its own unless a
// TxStore runs it in one. Time is statement_timestamp(): now() would be that of
// the transaction's begin, which may be long ago.
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
// its holder may be about to lock it, and from then on the key is free.
type statements struct {
	look, claim, take, renew, complete, release, state string
	lock, record, lapse, reclaim, settle               string
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
			"{notify}", "coalesce(CASE WHEN waited THEN pg_notify('oncehttp_' || tableoid, id::text) IS NULL END, false)",
		).Replace(text)
	}
	return &statements{
		look: fill(`SELECT
			coalesce(obj_description(to_regclass('{name}')::oid, 'pg_class'), CASE WHEN to_regclass('{name}') IS NULL THEN 'none' ELSE '' END),
			current_setting('server_version_num')::int8, current_setting('synchronous_commit'), current_setting('fsync'),
			coalesce(to_regclass('{name}')::oid::int8, 0)`),

		// A key that is free is taken; of one that is not, the row is returned.
		// None of both: somebody else took it at the same time. A key that is done
		// costs one look into the index and no lock, no write, no transaction id.
		claim: fill(`WITH old AS MATERIALIZED (
				SELECT key = $7::bytea AS same, token, ident, expires, lapses, begins, holder, head, body FROM {table} WHERE id = $1::uuid
			), new AS (
				INSERT INTO {table} (id, key, token, ident, born, lapses, begins, keep, expires, holder)
				SELECT $1::uuid, $7::bytea, $2::bytea, $3::bytea, {now}, {now} + $4::int8 * interval '1us', {now} + $6::int8 * interval '1us',
					$5::int8, {now} + greatest($4::int8, $5::int8) * interval '1us', 1
				WHERE NOT EXISTS (SELECT FROM old)
				ON CONFLICT (id) DO NOTHING
				RETURNING token
			)
			SELECT true, true, {now}, token, NULL::bytea, {now}, NULL::timestamptz, NULL::timestamptz, 1, NULL::bytea, NULL::bytea FROM new
			UNION ALL
			SELECT false, same, {now}, token, ident, expires, lapses, begins, holder, head, body FROM old`),

		// Takes a row that claim found expired, lapsed or the caller's own. It
		// never waits for a lock: a transaction may hold one for minutes.
		take: fill(`WITH mine AS MATERIALIZED (
				SELECT expires <= {now} OR token <> $2::bytea AND begins IS NOT NULL AS fresh FROM {table}
				WHERE id = $1::uuid AND (expires <= {now} OR lapses IS NOT NULL AND
					(token = $2::bytea OR begins <= {now} OR $7::bool AND begins IS NULL AND lapses <= {now}))
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

		renew: fill(`UPDATE {table} SET lapses = {now} + $3::int8 * interval '1us', begins = NULL,
				expires = {now} + greatest($3::int8, keep) * interval '1us'
			WHERE id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL AND expires > {now}
			RETURNING $3::int8 = 0 AND {notify}`),

		complete: fill(`UPDATE {table} SET lapses = NULL, begins = NULL, keep = NULL,
				head = $3::bytea, body = $4::bytea, expires = {now} + $5::int8 * interval '1us'
			WHERE id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL AND expires > {now}
			RETURNING {notify}`),

		release: fill(`DELETE FROM {table} WHERE id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL
			RETURNING {notify}`),

		// What renew, complete and release found instead, when they found nothing.
		state: fill(`SELECT token = $2::bytea, lapses IS NULL FROM {table} WHERE id = $1::uuid AND expires > {now}`),

		// From here on: of a transaction that holds a claim.
		lock: fill(`SELECT token = $2::bytea AND lapses IS NOT NULL FROM {table} WHERE id = $1::uuid FOR UPDATE`),

		record: fill(`UPDATE {table} SET lapses = NULL, begins = NULL, keep = NULL,
				head = $3::bytea, body = $4::bytea, expires = {now} + $5::int8 * interval '1us'
			WHERE id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL
			RETURNING {notify}`),

		lapse: fill(`UPDATE {table} SET lapses = {now}, begins = NULL, expires = {now} + $3::int8 * interval '1us'
			WHERE id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL
			RETURNING {notify}`),

		reclaim: fill(`UPDATE {table} SET lapses = greatest(lapses, {now} + $3::int8 * interval '1us'),
				expires = greatest(expires, {now} + $3::int8 * interval '1us'), begins = {now} + $3::int8 * interval '1us'
			WHERE id = $1::uuid AND token = $2::bytea AND lapses IS NOT NULL AND expires > {now}
			RETURNING true`),

		// Waits for the end of a transaction that holds the row, and so learns
		// how it ended.
		settle: fill(`SELECT token = $2::bytea, lapses IS NULL FROM {table} WHERE id = $1::uuid FOR UPDATE`),

		// Looks at a key for those who wait, and flags its row for notification if
		// $2 asks for it and no transaction holds it.
		flag: fill(`WITH was AS MATERIALIZED (
				SELECT lapses, begins, waited FROM {table} WHERE id = $1::uuid AND expires > {now}
			), flagged AS (
				UPDATE {table} AS r SET waited = true FROM was
				WHERE id = $1::uuid AND $2::bool AND was.waited IS NULL AND was.begins IS NULL AND was.lapses > {now}
					AND r.begins IS NULL AND r.lapses > {now}
				RETURNING true
			)
			SELECT {now}, lapses, begins, waited IS TRUE OR EXISTS (SELECT FROM flagged) FROM was`),

		list: fill(`SELECT {now}, id::text, key, ident, born, expires, lapses, begins, holder, NULL::bytea, NULL::bytea FROM {table}
			WHERE key > $1::bytea AND expires > {now} AND born <= {now} - $2::int8 * interval '1us' AND CASE $3::int8
				WHEN 0 THEN true
				WHEN 2 THEN lapses > {now} OR begins IS NOT NULL
				WHEN 3 THEN lapses IS NULL
				WHEN 4 THEN lapses <= {now} AND begins IS NULL END
			ORDER BY key LIMIT $4::int8`),

		show: fill(`SELECT {now}, id::text, key, ident, born, expires, lapses, begins, holder, head, body FROM {table}
			WHERE id = $1::uuid AND expires > {now}`),

		// Finds a row that a transactional claim left behind when it ended. A
		// transaction that goes on holds a lock that conflicts with this one.
		ask: fill(`SELECT true FROM {table} WHERE id = $1::uuid AND begins <= {now} FOR KEY SHARE SKIP LOCKED`),

		resolve: fill(`UPDATE {table} SET token = '', lapses = NULL, keep = NULL, head = $2::bytea, body = $3::bytea,
				expires = {now} + coalesce($4::int8, keep) * interval '1us'
			WHERE id = $1::uuid AND lapses <= {now} AND begins IS NULL AND expires > {now}
			RETURNING {notify}`),

		drop: fill(`DELETE FROM {table}
			WHERE id = $1::uuid AND lapses <= {now} AND begins IS NULL AND expires > {now}
			RETURNING {notify}`),

		purge: fill(`DELETE FROM {table}
			WHERE id = $1::uuid AND (lapses IS NULL OR lapses <= {now} AND begins IS NULL) AND expires > {now}
			RETURNING {notify}`),

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
