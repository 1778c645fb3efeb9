"""Commands: what they print, and one line with the right exit code for what can't be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from queueops import keys, operations
from queueops.inspector import Inspector
from queueops.models import Operation, OperatorAction, Queue
from queueops.payload import encode_spec
from queueops.states import JobState
from queueops.store import Store
from tests import factories as f
from tests.factories import PERSON, QUEUE, Child, Redis

pytestmark = pytest.mark.django_db

MANAGE = Path(__file__).parents[2] / "manage.py"


@pytest.fixture
def store(redis: Redis) -> Store:
    """By the server's own clock: commands ask it, too."""
    return Store()


def run(*words: str) -> str:
    """What a command prints. Raises CommandError or SystemExit as it does."""
    out = StringIO()
    call_command(*words, stdout=out, stderr=out)
    return out.getvalue()


def run_json(*words: str) -> Any:
    out = StringIO()
    call_command(*words, "--json", stdout=out, stderr=StringIO())
    return json.loads(out.getvalue())


# -- enqueue -------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_of_the_job_that_it_made(redis: Redis) -> None:
    printed = run(
        "enqueue", "shop.charge", "--args", '["a", 1]', "--kwargs", '{"x": null}', "--queue", "mail",
        "--tag", "customer=42", "--tag", "vip",
    )  # fmt: skip

    job = Inspector().job("mail", printed.strip())
    assert job is not None
    assert (job.handler, job.args, job.kwargs) == ("shop.charge", ["a", 1], {"x": None})
    assert (job.state, job.tags) == ("ready", {"customer": "42", "vip": ""})


def test_enqueue_takes_an_id_and_a_delay(redis: Redis) -> None:
    assert run("enqueue", "shop.charge", "--id", "nightly", "--queue", "mail", "--delay", "2h") == "nightly\n"
    assert run("enqueue", "shop.charge", "--id", "nightly", "--queue", "mail") == "nightly\n"

    job = Inspector().job("mail", "nightly")
    assert job is not None
    assert job.run_at is not None
    assert job.state == "delayed"
    assert 7_190 < job.run_at.timestamp() - Inspector().now_ms() / 1000 <= 7_200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--args", "[1 2]"], "--args is not JSON: Expecting ',' delimiter at character 4"),
        (["--args", '{"a": 1}'], "--args must be a list in JSON, got dict"),
        (["--kwargs", "[1]"], "--kwargs must be an object in JSON, got list"),
        (["--kwargs", "{'a': 1}"], "--kwargs is not JSON"),
        (["--kwargs", '{\n"a": x}'], "line 2, column 6"),
        (["--args", "[" * 100_000], "--args is nested too deep"),
        (["--args", "[NaN]"], "args[0] is nan"),
        (["--delay", "soon"], "--delay must be a duration"),
        (["--delay", "-5"], "--delay must be a duration"),
        (["--delay", "99999999999d"], "delay ends past the year 9999"),
        (["--queue", "no queue"], "is not allowed"),
        (["--id", "a b"], "is not allowed"),
        (["--priority", "urgent"], "priority must be one of"),
    ],
)
def test_enqueue_refuses_what_it_can_not_mean(words: list[str], said: str, redis: Redis) -> None:
    with pytest.raises(CommandError) as refusal:
        run("enqueue", "shop.charge", *words)
    assert said in str(refusal.value)
    assert refusal.value.returncode == 2
    assert "\n" not in str(refusal.value)


# -- queues, jobs, job ---------------------------------------------------------------------------


def test_queues_prints_an_object_a_queue(store: Store, child: Child, redis: Redis) -> None:
    f.seed_dead(child, "a")
    f.seed_ready(store, "b", "c")
    f.seed_delayed(store, "d", run_at_ms=Inspector().now_ms() + 60_000)
    f.seed_discarded(store, "e", queue="orders")
    f.set_up(store, paused="1", paused_reason="downstream is down")

    mail, orders = run_json("queues")

    assert mail["queue"] == "mail"
    assert [mail[s] for s in ("delayed", "ready", "pending", "dead", "discarded")] == [1, 2, 0, 1, 0]
    assert mail["paused"] is True
    assert 0 <= mail["oldest_ready_s"] < 10
    assert (orders["discarded"], orders["paused"], orders["oldest_ready_s"]) == (1, False, None)
    text = run("queues")
    assert "paused: downstream is down" in text
    assert "orders" in text


def test_queues_without_any_says_what_to_do(redis: Redis) -> None:
    assert "no queue yet" in run("queues")
    assert run_json("queues") == []


def test_jobs_pages_through_a_state(store: Store, redis: Redis) -> None:
    now_ms = Inspector().now_ms()
    f.seed_delayed(
        store, *[f"j-{i}" for i in range(5)], run_at_ms=now_ms + 60_000, spec=encode_spec("shop.charge")
    )

    jobs = run_json("jobs", "mail", "delayed")
    assert [job["id"] for job in jobs] == [f"j-{i}" for i in range(5)]
    assert {job["handler"] for job in jobs} == {"shop.charge"}

    text = run("jobs", "mail", "delayed", "--limit", "2")
    assert "j-1" in text
    assert "j-2" not in text
    cursor = text.partition("--after '")[2].partition("'")[0]
    assert "5 in all" in text
    assert [job["id"] for job in run_json("jobs", "mail", "delayed", "--after", cursor)] == [
        "j-2",
        "j-3",
        "j-4",
    ]
    assert "no job of mail is dead" in run("jobs", "mail", "dead")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jobs", "nowhere", "dead"], "no queue is named nowhere: there is mail"),
        (["jobs", "mail", "lost"], "no jobs are listed in state 'lost'"),
        (["jobs", "mail", "done"], "no jobs are listed in state 'done'"),
        (["jobs", "no queue", "dead"], "is not allowed"),
        (["jobs", "mail", "dead", "--limit", "0"], "limit must be 1 to 1000"),
        (["jobs", "mail", "dead", "--after", "x"], "no such page"),
        (["job", "nobody"], "no job has the id nobody"),
        (["job", "a", "--queue", "nowhere"], "no queue is named nowhere"),
        (["job", "nobody", "--queue", "mail"], "no job has the id nobody in queue mail"),
        (["job", "a b"], "is not allowed"),
        (["pause", "nowhere"], "no queue is named nowhere"),
        (["resume", "nowhere"], "no queue is named nowhere"),
        (["requeue", "--queue", "nowhere"], "no queue is named nowhere"),
        (["requeue", "--id", "nobody"], "no job has the id nobody"),
        (["requeue", "--id", "nobody", "--queue", "mail"], "no job has the id nobody in queue mail"),
        (["requeue", "--id", "a b"], "is not allowed"),
        (["requeue"], "say which jobs"),
        (["requeue", "--id", "a", "--handler", "x"], "no filter goes with it"),
        (["requeue", "--queue", "mail", "--state", "ready"], "requeue takes dead jobs, not ready ones"),
        (["requeue", "--queue", "mail", "--state", "lost"], "no jobs are listed in state 'lost'"),
        (["requeue", "--queue", "mail", "--older-than", "old"], "--older-than must be a duration"),
        (["requeue", "--queue", "mail", "--rate", "fast"], "--rate must be jobs a second"),
        (["requeue", "--queue", "mail", "--rate", "0/s"], "rate must be jobs a second over 0"),
        (["requeue", "--queue", "mail", "--canary", "0"], "canary must be at least 1"),
        (["requeue", "--go-on", "nothing"], "no requeue operation has the id nothing"),
        (["discard", "--queue", "mail"], "say which, or give ids"),
        (["reschedule", "--queue", "mail"], "reschedule needs a time"),
        (["reschedule", "--queue", "mail", "--at", "2026-01-01"], "--at must say its zone"),
        (["reschedule", "--queue", "mail", "--at", "noon"], "--at must be a time"),
    ],
)
def test_what_is_unknown_is_one_line_and_exit_2(
    words: list[str], said: str, store: Store, redis: Redis
) -> None:
    f.seed_ready(store, "a")
    with pytest.raises(CommandError) as refusal:
        run(*words)
    assert said in str(refusal.value)
    assert refusal.value.returncode == 2
    assert "\n" not in str(refusal.value)


def test_job_prints_the_fields_of_the_interface_and_a_timeline(child: Child, redis: Redis) -> None:
    spec = encode_spec("shop.charge", [{"password": "hunter2", "note": "ok"}], tags={"customer": 42})
    f.seed_dead(child, "j", spec=spec)

    job = run_json("job", "j")

    assert (job["id"], job["queue"], job["handler"], job["state"]) == ("j", "mail", "shop.charge", "dead")
    assert (job["attempts"], job["rescues"], job["delivery"], job["result"]) == (1, 0, 1, None)
    assert job["error"]["message"] == "it failed"
    assert job["args"] == [{"password": "[masked]", "note": "ok"}]
    assert [moment["verb"] for moment in job["timeline"]] == ["enqueue", "claim", "bury"]
    assert job["timeline"][-1]["to"] == "dead"
    assert run_json("job", "j", "--queue", "mail", "--reveal")["args"][0]["password"] == "hunter2"
    text = run("job", "j")
    assert "shop.charge" in text
    assert "hunter2" not in text
    assert "bury" in text


@pytest.mark.damages("a spec that is no JSON")
def test_job_and_jobs_show_what_can_not_be_read(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "bad", spec=b"\xff\xfe{")
    redis.set(keys.job(QUEUE, "worse"), "not a hash")
    redis.zadd(keys.jobs_in(QUEUE, JobState.DEAD), {"worse": 5})

    assert "is not UTF-8" in run_json("job", "bad", "--queue", "mail")["corrupt"]
    assert "does not hold a job" in run_json("jobs", "mail", "dead")[0]["corrupt"]
    assert "does not hold a job" in run("jobs", "mail", "dead")
    assert "is not UTF-8" in run("job", "bad", "--queue", "mail")


def test_what_a_job_says_can_not_command_a_terminal(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "j", spec=encode_spec("shop.charge", ["\x1b[2J\x07", "‮"]))
    assert "\x1b" not in run("job", "j", "--queue", "mail")


# -- bulk actions --------------------------------------------------------------------------------


def test_requeue_by_filter_reports_and_is_recorded(child: Child, redis: Redis) -> None:
    f.seed_dead(child, *[f"j-{i}" for i in range(30)])

    assert run_json("requeue", "--queue", "mail", "--dry-run") == {
        "verb": "requeue",
        "dry_run": True,
        "total": 30,
        "jobs": "dead, in queue mail",
    }
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.DEAD)) == 30

    text = run("requeue", "--queue", "mail", "--reason", "fixed the key")

    operation = Operation.objects.get()
    assert f"30 of 30 requeued (operation {operation.pk}, finished)" in text
    assert len(f.ids_in(redis, JobState.READY)) == 30
    action = OperatorAction.objects.get()
    assert (action.reason, action.count, action.operation) == ("fixed the key", 30, operation.pk)
    assert action.actor.startswith("shell:")
    assert f.events(redis, "j-0")[-1]["reason"] == "fixed the key"


def test_requeue_by_id_finds_each_queue(store: Store, child: Child, redis: Redis) -> None:
    f.seed_dead(child, "a", "b")
    f.seed_dead(Child(store, "host:9:zz/1", "orders").register(), "c")

    reports = run_json("requeue", "--id", "a", "c", "--id", "b")

    assert [(report["queue"], report["done"]) for report in reports] == [("mail", 2), ("orders", 1)]


def test_a_job_that_is_not_there_any_more_says_its_true_state(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "a")
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("requeue", "--id", "a", stdout=out)
    assert ended.value.code == 1
    assert "0 of 0 requeued" in out.getvalue()
    assert "1 not taken, they are ready: a" in out.getvalue()


def test_a_dry_run_counts_what_the_filter_takes(child: Child, redis: Redis) -> None:
    f.seed_dead(child, *[f"a-{i}" for i in range(7)], spec=encode_spec("shop.charge"))
    f.seed_dead(child, *[f"b-{i}" for i in range(5)], spec=encode_spec("shop.ship"))

    def count(*words: str) -> int:
        return int(run_json("discard", "--queue", "mail", "--state", "dead", "--dry-run", *words)["total"])

    assert count() == 12
    assert count("--handler", "shop.charge") == 7
    assert count("--cause", "boom", "--id-prefix", "b-") == 5
    assert count("--older-than", "1h") == 0
    assert run_json("discard", "--id", "a-1", "--dry-run")["total"] == 1
    assert not Operation.objects.exists()


def test_the_other_verbs_do_what_they_say(
    store: Store, child: Child, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "SEEN_S", 0)
    far = Inspector().now_ms() + 600_000
    f.seed_delayed(store, "late", "later", run_at_ms=far)

    assert run_json("reschedule", "--id", "later", "--in", "2h")["done"] == 1
    assert f.run_at(redis, "later") > far
    assert run_json("runnow", "--id", "late")["done"] == 1
    assert f.state(redis, "late") == "ready"
    assert run_json("discard", "--id", "late", "later")["done"] == 2
    assert run_json("restore", "--queue", "mail")["done"] == 2
    assert [f.state(redis, job_id) for job_id in ("late", "later")] == ["ready", "delayed"]
    assert run_json("discard", "--queue", "mail", "--state", "delayed")["done"] == 1
    assert run_json("purge", "--queue", "mail")["done"] == 1
    assert f.state(redis, "later") is None
    [job] = child.take(1)
    assert run_json("cancel", "--id", "late")["done"] == 1
    assert store.look(QUEUE, child.name, "late", job.delivery) == "cancelled"
    child.ack(job)


def test_a_canary_pauses_and_goes_on(child: Child, redis: Redis) -> None:
    f.seed_dead(child, *[f"j-{i}" for i in range(10)])

    text = run("requeue", "--queue", "mail", "--canary", "3")

    operation = Operation.objects.get()
    assert "3 of 10 requeued" in text
    assert f"--go-on {operation.pk}" in text
    assert "10 of 10 requeued" in run("requeue", "--go-on", operation.pk)
    with pytest.raises(CommandError, match="is finished"):
        run("requeue", "--go-on", operation.pk)


# -- pause, resume, doctor -----------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_pause_and_resume_reach_redis_and_the_record(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "a")

    assert "mail is paused" in run("pause", "mail", "--reason", "downstream is down")
    summary = Inspector().summary("mail")
    assert (summary.paused, summary.paused_reason) == (True, "downstream is down")
    assert Queue.objects.get(name="mail").paused

    assert "mail goes on" in run("resume", "mail")
    assert not Inspector().summary("mail").paused
    assert "until" in run("pause", "mail", "--for", "30m")
    until = Inspector().summary("mail").paused_until_ms
    assert until is not None
    assert 1_790_000 < until - Inspector().now_ms() <= 1_800_000


@pytest.mark.damages("that is what it is about")
def test_doctor_exits_1_and_names_the_job(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "a", spec=encode_spec("shop.charge"))
    assert "well" in run("doctor")
    assert run_json("doctor")["ok"] is True
    redis.zadd(keys.jobs_in(QUEUE, JobState.DEAD), {"a": 5})

    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", "--json", stdout=out)
    assert ended.value.code == 1
    report = json.loads(out.getvalue())
    assert report["ok"] is False
    assert {"severity": "error", "queue": "mail", "job_id": "a", "what": "is ready and also in dead",
            "mended": False} in report["findings"]  # fmt: skip

    assert "(mended)" in run("doctor", "--repair")
    assert run_json("doctor")["ok"] is True


# -- when something is away ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["queues"],
        ["jobs", "mail", "dead"],
        ["job", "a", "--queue", "mail"],
        ["job", "a"],
        ["enqueue", "shop.charge"],
        ["requeue", "--queue", "mail"],
        ["pause", "mail"],
        ["doctor"],
    ],
)
def test_no_redis_is_one_line_with_the_url_less_its_password(words: list[str]) -> None:
    url = "redis://someone:hunter2@127.0.0.1:1/0"
    with override_settings(QUEUEOPS={"REDIS_URL": url}), pytest.raises(CommandError) as refusal:
        run(*words)
    said = str(refusal.value)
    assert "redis://someone:***@127.0.0.1:1/0" in said
    assert "hunter2" not in said
    assert "\n" not in said
    assert refusal.value.returncode == 1


def manage(site_env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MANAGE), *words], env=site_env, capture_output=True, text=True, timeout=60
    )


def test_from_a_shell_errors_are_one_line_on_stderr(site_env: dict[str, str], redis: Redis) -> None:
    f.seed_ready(Store(), "a")
    unknown = manage(site_env, "jobs", "nowhere", "dead")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.strip().count("\n") == 0
    away = manage({**site_env, "REDIS_URL": "redis://:secret@127.0.0.1:1/0"}, "queues")
    assert (away.returncode, away.stdout) == (1, "")
    assert away.stderr.strip().count("\n") == 0
    assert "redis://:***@127.0.0.1:1/0" in away.stderr


@pytest.mark.django_db(transaction=True)
def test_ctrl_c_leaves_a_bulk_action_that_goes_on_later(
    site_env: dict[str, str], child: Child, redis: Redis
) -> None:
    f.seed_dead(child, *[f"j-{i}" for i in range(60)])
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), "requeue", "--queue", "mail", "--rate", "5/s"],
        env=site_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while len(f.ids_in(redis, JobState.READY)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130, err
    operation = Operation.objects.get()
    assert operation.status == "paused"
    assert f"--go-on {operation.pk}" in err
    Operation.objects.filter(pk=operation.pk).update(arguments={})
    assert "60 of 60 requeued" in run("requeue", "--go-on", operation.pk)
    assert len(f.ids_in(redis, JobState.READY)) == 60


def test_the_actor_is_whom_the_shell_knows(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "a")
    run("discard", "--id", "a")
    assert f.events(redis, "a")[-1]["actor"].startswith("shell:")
    assert f.events(redis, "a")[-1]["actor"] != PERSON
