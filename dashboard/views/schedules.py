"""Schedules: slots ahead and behind, and what a person does to them."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any

from django.db import DatabaseError, IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import known, payloads
from dashboard.access import may, needs
from dashboard.answers import Undo, answered, next_url
from dashboard.forms import PauseForm, ReasonForm, first_error
from dashboard.htmx import render_page
from dashboard.schedule_forms import BackfillForm, ScheduleForm, SlotForm
from queueops.actors import who
from queueops.cron import CLOCK_CHANGE_RULE, clock_changes
from queueops.errors import QueueOpsError, ScheduleError
from queueops.inspector import Inspector
from queueops.job import from_ms, to_ms
from queueops.models import RetryPolicy, Schedule
from queueops.rights import Right
from queueops.schedules import backfill, by_hand, ledger, reads
from queueops.schedules.by_hand import Refused
from queueops.schedules.definition import Definition, moment, without_pause

PAGE_SIZE = 50


def _now_ms() -> int:
    """Redis TIME; this host's clock while Redis is away, for looking only."""
    try:
        return Inspector().now_ms()
    except QueueOpsError:
        return to_ms(timezone.now())


@require_safe
@needs(Right.VIEW_JOB)
def schedules(request: HttpRequest) -> HttpResponse:
    """Show every schedule with its next slots, its last runs and what is wrong."""
    after = request.GET.get("after", "")[:80]
    now_ms = _now_ms()
    context = {
        **_listed(after, now_ms),
        "after": after,
        "now": from_ms(now_ms),
        "here": request.get_full_path(),
        "may_edit": may(request.user, Right.EDIT_SCHEDULE),
    }
    return render_page(request, "dashboard/schedules.html", "schedule-list", context)


def _listed(after: str, now_ms: int) -> dict[str, Any]:
    """Read a page of schedules and what is wrong with any; or why the database can't say."""
    try:
        rows = list(Schedule.objects.filter(key__gt=after).order_by("key")[: PAGE_SIZE + 1])
        more, rows = len(rows) > PAGE_SIZE, rows[:PAGE_SIZE]
        return {
            "rows": [_shown(row, now_ms) for row in rows],
            "alarms": reads.alarms(from_ms(now_ms)),
            "next_key": rows[-1].key if more else "",
        }
    except DatabaseError as error:
        return {"trouble": type(error).__name__}


@require_safe
@needs(Right.VIEW_JOB)
def schedule(request: HttpRequest, key: str) -> HttpResponse:
    """Show one schedule: its rule, slots ahead, the ledger of those behind."""
    return _page(request, get_object_or_404(Schedule, key=key))


def _page(request: HttpRequest, row: Schedule) -> HttpResponse:
    now_ms = _now_ms()
    context = {
        "each": _shown(row, now_ms),
        "row": row,
        "payload": payloads.show({"args": payloads.plain(row.args), "kwargs": payloads.plain(row.kwargs)}),
        "changes": _clock_changes(row.definition(), now_ms),
        "rule_words": CLOCK_CHANGE_RULE,
        "now": from_ms(now_ms),
        "may_edit": may(request.user, Right.EDIT_SCHEDULE),
        "may_operate": may(request.user, Right.EDIT_SCHEDULE) and may(request.user, Right.RUN_OPERATION),
        "is_clash": row.key
        in {alarm.key for alarm in reads.alarms(from_ms(now_ms)) if alarm.kind == "clash"},
    }
    return render_page(request, "dashboard/schedule.html", "schedule-body", context)


def _shown(row: Schedule, now_ms: int) -> dict[str, Any]:
    """Return a schedule as pages show it."""
    slots = reads.behind(row, now_ms)
    ran = next((slot for slot in slots if slot.started_at is not None), None)
    return {
        "row": row,
        "words": row.definition().describe(),
        "ahead": reads.ahead(row, now_ms),
        "marks": reads.marks(slots),
        "slots": [
            {
                "slot": slot,
                "word": reads.outcome_of(slot),
                "late_s": ledger.lateness_s(slot),
                "took_s": _took_s(slot.started_at, slot.finished_at),
                "can_run": slot.state in {"skipped", "missed"},
                "ms": to_ms(slot.slot_at),
            }
            for slot in slots[:20]
        ],
        "last": ran,
        "last_word": reads.outcome_of(ran) if ran else "",
        "last_took_s": _took_s(ran.started_at, ran.finished_at) if ran else None,
        "token": secrets.token_hex(5),
    }


def _took_s(started: Any, finished: Any) -> float | None:
    return (finished - started).total_seconds() if started and finished else None


def _clock_changes(definition: Definition, now_ms: int) -> list[str]:
    try:
        return [str(change) for change in clock_changes(definition.zone, from_ms(now_ms), 2)]
    except ScheduleError:
        return []


# -- made and edited -------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.EDIT_SCHEDULE)
def schedule_new(request: HttpRequest) -> HttpResponse:
    """Ask for a new schedule, and make it."""
    form = ScheduleForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        row = Schedule()
        if _save(request, row, form):
            text = f"{row.key} is made. {' '.join(reads.effect_of(None, row.definition(), _now_ms()))}"
            return answered(request, text, back=reverse("schedule", args=[row.key]))
    return _form_page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.EDIT_SCHEDULE)
def schedule_edit(request: HttpRequest, key: str) -> HttpResponse:
    """Ask for changes to a schedule, and make them. One from the code is edited there."""
    row = _editable(key)
    form = ScheduleForm(request.POST or None, schedule=row)
    if request.method == "POST" and form.is_valid():
        effect = reads.effect_of(row, form.definition(), _now_ms())
        if _save(request, row, form):
            text = f"{row.key} is changed. {' '.join(effect)}"
            return answered(request, text, back=reverse("schedule", args=[row.key]))
    return _form_page(request, form, row)


def _save(request: HttpRequest, row: Schedule, form: ScheduleForm) -> bool:
    is_new = row.pk is None
    before = None if is_new else row.definition().to_json()
    form.apply(row)
    row.changed_at = from_ms(_now_ms())
    try:
        with transaction.atomic():
            row.save()
            by_hand.note_edit(
                row, before=before, verb="make_schedule" if is_new else "edit_schedule", **who(request.user)
            )
    except IntegrityError:
        form.add_error("key", "somebody made a schedule of this name just now")
        return False
    return True


def _form_page(request: HttpRequest, form: ScheduleForm, row: Schedule | None) -> HttpResponse:
    context = {
        "form": form,
        "row": row,
        "handlers": known.names(),
        "policies": RetryPolicy.objects.values_list("name", flat=True)[:200],
        "preview": _preview(form, row) if form.is_bound or row else None,
        "rule_words": CLOCK_CHANGE_RULE,
    }
    response = render_page(request, "dashboard/schedule_form.html", "schedule-form", context)
    if form.is_bound and form.errors:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


@require_POST  # arguments don't belong into an address
@needs(Right.EDIT_SCHEDULE)
def schedule_preview(request: HttpRequest) -> HttpResponse:
    """Show what saving what is typed so far would do, and its next five slots, as schedulers find them."""
    row = Schedule.objects.filter(key=request.POST.get("of", "")).first()
    form = ScheduleForm(request.POST, schedule=row)
    form.is_valid()
    context = {"preview": _preview(form, row), "rule_words": CLOCK_CHANGE_RULE}
    return render_page(request, "dashboard/schedule_form.html", "schedule-preview", context)


def _preview(form: ScheduleForm, row: Schedule | None) -> dict[str, Any]:
    now_ms = _now_ms()
    if form.is_bound:
        form.is_valid()
        definition = form.definition(form.cleaned_data)
        errors = {name: list(texts) for name, texts in form.errors.items()}
    else:
        assert row is not None
        definition, errors = row.definition(), {}
    timing = {"kind", "rule", "zone", "start_at", "end_at", "jitter_s"} & errors.keys()
    try:
        # While it is paused, what it would run: that is what a person wants to see of a rule.
        shown = definition.slots_after(now_ms)
        slots = [] if timing else [next(shown, None) for _ in range(5)]
        words = "" if timing else definition.describe()
    except ScheduleError as error:
        slots, words = [], str(error)
    return {
        "words": words,
        "slots": [moment(slot, definition.zone) for slot in slots if slot is not None],
        "effect": [] if errors else reads.effect_of(row, definition, now_ms),
        "changes": _clock_changes(definition, now_ms),
        "zone": reads.zone_of(definition),
        "errors": errors,
    }


@require_POST
@needs(Right.EDIT_SCHEDULE)
def schedule_delete(request: HttpRequest, key: str) -> HttpResponse:
    """Delete a schedule with its ledger; one from the code only when it has left the code."""
    row = get_object_or_404(Schedule, key=key)
    if row.source == Schedule.Source.CODE and not row.error:
        return answered(request, f"{key} comes from the code: remove it there", good=False)
    with transaction.atomic():
        by_hand.note_edit(row, before=row.definition().to_json(), verb="delete_schedule", **who(request.user))
        row.delete()
    return answered(request, f"{key} is deleted", back=reverse("schedules"))


# -- paused, run, skipped --------------------------------------------------------------------------


@require_safe
@needs(Right.EDIT_SCHEDULE)
def schedule_pause_form(request: HttpRequest, key: str) -> HttpResponse:
    """Ask why, and until when."""
    return _pause_page(request, get_object_or_404(Schedule, key=key))


def _pause_page(request: HttpRequest, row: Schedule, error: str = "") -> HttpResponse:
    context = {"row": row, "error": error, "given": request.POST, "next": next_url(request, _url(row))}
    response = render_page(request, "dashboard/schedule_pause.html", "pause-form", context)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


@require_POST
@needs(Right.EDIT_SCHEDULE)
def schedule_pause(request: HttpRequest, key: str) -> HttpResponse:
    """Let no slot run until it is resumed; slots meanwhile are skipped, and stay so."""
    row = get_object_or_404(Schedule, key=key)
    form = PauseForm(request.POST)
    if not form.is_valid():
        return _pause_page(request, row, first_error(form))
    until = form.until(from_ms(_now_ms()))
    try:
        by_hand.pause(row, reason=form.cleaned_data["reason"], resume_at=until, **who(request.user))
    except Refused as error:
        return _pause_page(request, row, str(error))
    text = f"{key} is paused" + (f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until else "")
    undo = Undo(reverse("schedule-resume", args=[key]), "Resume")
    return answered(request, text, undo=undo, refresh=True, close=True, back=_url(row))


@require_POST
@needs(Right.EDIT_SCHEDULE)
def schedule_resume(request: HttpRequest, key: str) -> HttpResponse:
    """Let a paused schedule run again, from its next slot on. 409 when it is not paused."""
    row = get_object_or_404(Schedule, key=key)
    if not row.paused:
        return answered(request, f"{key} is not paused", good=False, refresh=True, back=_url(row))
    form = ReasonForm(request.POST)
    reason = form.cleaned_data["reason"] if form.is_valid() else ""
    effect = reads.effect_of(row, without_pause(row.definition()), _now_ms())
    by_hand.resume(row, reason=reason, **who(request.user))
    text = f"{key} goes on. {' '.join(effect)}"
    return answered(request, text, refresh=True, close=True, back=_url(row))


@require_POST
@needs(Right.EDIT_SCHEDULE)
def schedule_run(request: HttpRequest, key: str) -> HttpResponse:
    """Run one slot now: the one that the form names, else this moment's."""
    row = get_object_or_404(Schedule, key=key)
    form = SlotForm(request.POST)
    if not form.is_valid():
        raise Http404("no such slot")
    given = form.cleaned_data
    try:
        slot = by_hand.run_slot(
            row, given["slot"], token=given["token"], reason=given["reason"], **who(request.user)
        )
    except (QueueOpsError, ValueError, TypeError) as error:
        return answered(request, f"{key} was not run: {error}", good=False, refresh=True, back=_url(row))
    what = "" if given["slot"] is None else f" for {slot.slot_at:%Y-%m-%d %H:%M:%S} UTC"
    return answered(request, f"{key} runs now{what}", refresh=True, back=_url(row))


@require_POST
@needs(Right.EDIT_SCHEDULE)
def schedule_skip(request: HttpRequest, key: str) -> HttpResponse:
    """Let the next slot not run."""
    row = get_object_or_404(Schedule, key=key)
    form = ReasonForm(request.POST)
    reason = form.cleaned_data["reason"] if form.is_valid() else ""
    try:
        slot = by_hand.skip_slot(row, reason=reason, **who(request.user))
    except QueueOpsError as error:
        return answered(request, f"{key}: {error}", good=False, refresh=True, back=_url(row))
    when = moment(to_ms(slot.slot_at), row.zone)
    undo = Undo(reverse("schedule-unskip", args=[key, to_ms(slot.slot_at)]), "Let it run")
    return answered(request, f"{key} will not run {when}", undo=undo, refresh=True, back=_url(row))


@require_POST
@needs(Right.EDIT_SCHEDULE)
def schedule_unskip(request: HttpRequest, key: str, slot_ms: int) -> HttpResponse:
    """Let a skipped slot run after all."""
    row = get_object_or_404(Schedule, key=key)
    try:
        by_hand.unskip_slot(row, slot_ms, **who(request.user))
    except QueueOpsError as error:
        return answered(request, f"{key}: {error}", good=False, refresh=True, back=_url(row))
    return answered(
        request, f"{key} runs {moment(slot_ms, row.zone)} after all", refresh=True, back=_url(row)
    )


# -- backfilled ------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.EDIT_SCHEDULE)
@needs(Right.RUN_OPERATION)
def schedule_backfill(request: HttpRequest, key: str) -> HttpResponse:
    """Ask which past slots to run, say what that would do, and start it as an operation."""
    row = get_object_or_404(Schedule, key=key)
    given = request.POST
    form = BackfillForm({**given.dict(), "zone": reads.zone_of(row.definition())} if given else None)
    found, error = None, ""
    if form.is_bound:
        if not form.is_valid():
            error = next(f"{name.removesuffix('_at')}: {e}" for name, es in form.errors.items() for e in es)
        else:
            try:
                found = backfill.dry_run(row, *form.range_ms())
                if "dry_run" not in given:
                    started = backfill.start(
                        row, *form.range_ms(), rate=form.cleaned_data["rate"],
                        reason=form.cleaned_data["reason"], **who(request.user),
                    )  # fmt: skip
                    return HttpResponseRedirect(reverse("operation", args=[started.pk]))
            except QueueOpsError as refused:
                error = str(refused)
    context = {
        "row": row,
        "given": given,
        "error": error,
        "found": found,
        "first": moment(found.first_ms, row.zone) if found and found.first_ms is not None else "",
        "last": moment(found.last_ms, row.zone) if found and found.last_ms is not None else "",
        "zone": reads.zone_of(row.definition()),
    }
    response = render_page(request, "dashboard/schedule_backfill.html", "backfill-form", context)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


def _editable(key: str) -> Schedule:
    row = get_object_or_404(Schedule, key=key)
    if row.source == Schedule.Source.CODE:
        raise Http404(f"{key} comes from the code and is edited there")
    return row


def _url(row: Schedule) -> str:
    return reverse("schedule", args=[row.key])
