-- Rows enough for PostgreSQL's planner to care, for test_plans.py. Statements end at a blank line.
INSERT INTO queueops_job (queue, job_id, state, since, handler, lane, run_at, attempts, rescues, delivery, edition,
    requeues, cause, error, reason, result, child, actor, unique_digest, finished_at, keep_until, accepted_at, spec,
    last_event)
SELECT 'q' || n % 20, 'job' || md5(n::text), s.state, now() - n * interval '1 second', 'shop.h' || n % 300, 'normal',
    now(), 0, 0, 0, 0, 0, CASE WHEN s.state = 'dead' THEN 'c' || n % 50 ELSE '' END, '', '', '', '', '', '',
    CASE WHEN s.state IN ('done', 'dead') THEN now() END,
    CASE WHEN s.state = 'done' THEN now() + interval '1 h' END,
    CASE WHEN s.state = 'accepted' THEN now() END, ''::bytea, ''
FROM generate_series(1, 40000) n,
    LATERAL (SELECT CASE WHEN n % 200 = 0 THEN 'accepted'
        ELSE (ARRAY['done', 'done', 'done', 'dead', 'delayed', 'ready'])[1 + n / 20 % 6] END AS state) s

INSERT INTO queueops_jobtag (queue, job_id, name, value)
SELECT queue, job_id, 'order', id::text FROM queueops_job

INSERT INTO queueops_jobevent (queue, stream_id, job_id, verb, from_state, to_state, actor, at, details)
SELECT queue, id || '-' || k, job_id, 'ack', '', 'done', '', now(), '{}' FROM queueops_job, generate_series(1, 2) k

INSERT INTO queueops_attempt (queue, job_id, delivery, number, child, ended_at, cause, error, is_last, policy)
SELECT queue, job_id, 1, 1, '', now(), '', '', true, '' FROM queueops_job

INSERT INTO queueops_effect (queue, idempotency_key, key, job_id, delivery, result, created_at)
SELECT queue, job_id, 'charge', job_id, 1, '1', now() - id * interval '1 second' FROM queueops_job

INSERT INTO queueops_operatoraction (at, actor, actor_name, verb, queue, job_id, filter, count, reason, operation)
SELECT now() - id * interval '1 second', '', 'n' || id % 400, 'requeue', queue, job_id, '{}', 1, '', ''
FROM queueops_job

INSERT INTO queueops_operation (id, verb, queue, from_state, filter, arguments, frozen_ms, done, skipped, results,
    status, cursor, actor, reason, error, created_at, finished_at, updated_at)
SELECT job_id, 'requeue', queue, 'dead', '{}', '{}', 0, 0, 0, '{}', 'finished', '{}', '', '', '',
    now() - id * interval '1 second', now(), now()
FROM queueops_job

INSERT INTO queueops_workerrecord (worker, host, info, first_seen_at, last_seen_at)
SELECT 'w' || n, '', '{}', now() - interval '90 d', now() - n * interval '1 minute' FROM generate_series(1, 20000) n

INSERT INTO queueops_scheduleslot (schedule_id, slot_at, suffix, state, queue, job_id, reason, version, actor, outcome,
    stands_for)
SELECT s.id, now() - n * interval '1 minute', '', 'ran', 'q1', 'slot' || n, '', 1, '', 'done', 1
FROM generate_series(1, 30000) n, queueops_schedule s

ANALYZE
