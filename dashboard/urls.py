"""The site's paths, one name each. An action is one verb, posted to the path of its name."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path, register_converter

from dashboard.converters import JobId, QueueName, Word
from dashboard.views import (
    activity,
    causes,
    exports,
    forecast,
    holds,
    jobs,
    metrics,
    operations,
    overview,
    probes,
    queue,
    queue_settings,
    schedules,
    search,
    selections,
    workers,
)

register_converter(QueueName, "queue")
register_converter(JobId, "job")
register_converter(Word, "word")

_QUEUE, _JOB, _SELECTION = (
    "queues/<queue:queue>/",
    "queues/<queue:queue>/jobs/<job:job_id>/",
    "queues/<queue:queue>/selection/",
)
_SCHEDULE = "schedules/<job:key>/"
_OPERATION = "operations/<word:operation_id>/"

urlpatterns = [
    path("", overview.overview, name="overview"),
    path(
        "login/",
        LoginView.as_view(template_name="dashboard/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("search/", search.search, name="search"),
    # A queue and its lists
    path(_QUEUE, queue.queue, name="queue"),
    path(f"{_QUEUE}export/", exports.jobs_export, name="jobs-export"),
    path(f"{_QUEUE}pause/form/", queue_settings.queue_pause_form, name="queue-pause-form"),
    path(f"{_QUEUE}pause/", queue_settings.queue_pause, name="queue-pause"),
    path(f"{_QUEUE}resume/", queue_settings.queue_resume, name="queue-resume"),
    path(f"{_QUEUE}hold/form/", holds.queue_hold_form, name="queue-hold-form"),
    path(f"{_QUEUE}hold/", holds.queue_hold, name="queue-hold"),
    path(f"{_QUEUE}holds/<int:hold_id>/lift/", holds.hold_lift, name="hold-lift"),
    path(f"{_QUEUE}limits/form/", queue_settings.queue_limits_form, name="queue-limits-form"),
    path(f"{_QUEUE}limits/", queue_settings.queue_limits, name="queue-limits"),
    # The ticked rows of a list
    path(f"{_SELECTION}requeue/", selections.jobs_requeue, name="jobs-requeue"),
    path(f"{_SELECTION}run-now/", selections.jobs_run_now, name="jobs-run-now"),
    path(f"{_SELECTION}reschedule/", selections.jobs_reschedule, name="jobs-reschedule"),
    path(f"{_SELECTION}discard/", selections.jobs_discard, name="jobs-discard"),
    path(f"{_SELECTION}restore/", selections.jobs_restore, name="jobs-restore"),
    path(f"{_SELECTION}purge/", selections.jobs_purge, name="jobs-purge"),
    path(f"{_SELECTION}cancel/", selections.jobs_cancel, name="jobs-cancel"),
    path(f"{_SELECTION}<word:verb>/form/", selections.jobs_form, name="jobs-form"),
    # One job
    path(_JOB, jobs.job, name="job"),
    path(f"{_JOB}requeue/", jobs.job_requeue, name="job-requeue"),
    path(f"{_JOB}run-now/", jobs.job_run_now, name="job-run-now"),
    path(f"{_JOB}reschedule/", jobs.job_reschedule, name="job-reschedule"),
    path(f"{_JOB}discard/", jobs.job_discard, name="job-discard"),
    path(f"{_JOB}restore/", jobs.job_restore, name="job-restore"),
    path(f"{_JOB}purge/", jobs.job_purge, name="job-purge"),
    path(f"{_JOB}cancel/", jobs.job_cancel, name="job-cancel"),
    path(f"{_JOB}reveal/", jobs.job_reveal, name="job-reveal"),
    path(f"{_JOB}edit/form/", jobs.job_edit_form, name="job-edit-form"),
    path(f"{_JOB}edit/", jobs.job_edit, name="job-edit"),
    path(f"{_JOB}<word:verb>/form/", jobs.job_form, name="job-form"),
    # The fleet and its work
    path("causes/", causes.causes_list, name="causes"),
    path("causes/<word:cause>/", causes.cause, name="cause"),
    path("causes/<word:cause>/hold/form/", holds.cause_hold_form, name="cause-hold-form"),
    path("causes/<word:cause>/hold/", holds.cause_hold, name="cause-hold"),
    path("forecast/", forecast.forecast, name="forecast"),
    path("workers/", workers.workers, name="workers"),
    path("workers/<path:worker>/drain/", workers.worker_drain, name="worker-drain"),
    path("operations/", operations.operations_list, name="operations"),
    path("operations/new/", operations.operation_form, name="operation-form"),
    path("operations/start/", operations.operation_start, name="operation-start"),
    path(_OPERATION, operations.operation, name="operation"),
    path(f"{_OPERATION}pause/", operations.operation_pause, name="operation-pause"),
    path(f"{_OPERATION}resume/", operations.operation_resume, name="operation-resume"),
    path(f"{_OPERATION}cancel/", operations.operation_cancel, name="operation-cancel"),
    path(f"{_OPERATION}undo/", operations.operation_undo, name="operation-undo"),
    path("schedules/", schedules.schedules, name="schedules"),
    path("schedules/new", schedules.schedule_new, name="schedule-new"),
    path("schedules/preview", schedules.schedule_preview, name="schedule-preview"),
    path(_SCHEDULE, schedules.schedule, name="schedule"),
    path(f"{_SCHEDULE}edit/", schedules.schedule_edit, name="schedule-edit"),
    path(f"{_SCHEDULE}delete/", schedules.schedule_delete, name="schedule-delete"),
    path(f"{_SCHEDULE}pause/form/", schedules.schedule_pause_form, name="schedule-pause-form"),
    path(f"{_SCHEDULE}pause/", schedules.schedule_pause, name="schedule-pause"),
    path(f"{_SCHEDULE}resume/", schedules.schedule_resume, name="schedule-resume"),
    path(f"{_SCHEDULE}run/", schedules.schedule_run, name="schedule-run"),
    path(f"{_SCHEDULE}skip/", schedules.schedule_skip, name="schedule-skip"),
    path(f"{_SCHEDULE}unskip/<int:slot_ms>/", schedules.schedule_unskip, name="schedule-unskip"),
    path(f"{_SCHEDULE}backfill/", schedules.schedule_backfill, name="schedule-backfill"),
    path("activity/", activity.activity, name="activity"),
    path("activity/export/", activity.activity_export, name="activity-export"),
    path("activity/<int:action_id>/undo/", activity.action_undo, name="action-undo"),
    # What asks without a person
    path("healthz", probes.healthz, name="healthz"),
    path("readyz", probes.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("admin/", admin.site.urls),
]
