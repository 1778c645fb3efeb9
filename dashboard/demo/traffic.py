"""The traffic of `make demo`: about 12 jobs a second with bursts, some of them bound to fail."""

import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import django
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
django.setup()

from queueops import JobSpec, RetryPolicy, enqueue_many  # noqa: E402  (needs the apps)
from queueops.connection import connection  # noqa: E402
from queueops.errors import QueueOpsError  # noqa: E402
from queueops.inspector import Inspector  # noqa: E402

TICK_S = 0.5
FULL = 3_000  # jobs ready: the workers can't keep up, so nothing is added for now

# Shorter than the defaults, so that a minute of watching shows a job's whole life.
PARTNER = RetryPolicy(name="partner", max_retries=4, delays_s=(3, 10, 30, 60))
MAIL = RetryPolicy(name="mail", max_retries=8, base_s=2, factor=2, cap_s=60)

_orders = itertools.count(random.randrange(70_000, 80_000))
_NAMES = ("Ada", "Béla", "Chidi", "Dörte", "Émile", "Fatima", "Goran", "Hana", "Ines", "Jūratė")


def hook() -> JobSpec:
    """One webhook; some customers are gone for good."""
    customer = "gone" if random.random() < 0.01 else f"c{random.randrange(9_000)}"
    order = next(_orders)
    body = {
        "event": random.choice(["order.paid", "order.shipped", "refund.made"]),
        "order": order,
        "customer": customer,
    }
    url = f"{settings.DEMO_API_URL}/hooks"
    kwargs = {"json": body, "headers": {"Authorization": "Bearer demo-secret"}, "timeout_s": 5}
    return JobSpec(
        "webhook.deliver",
        [url, "POST"],
        kwargs,
        queue="webhooks",
        policy=PARTNER,
        tags={"customer": customer},
    )


def mail(template: str, delay: float | None = None) -> JobSpec:
    """One mail; some addresses are none."""
    to = (
        "no address"
        if random.random() < 0.005
        else f"{random.choice(_NAMES).lower()}{random.randrange(999)}@example.com"
    )
    return JobSpec("mail.send", [to, template], queue="mail", policy=MAIL, delay=delay)


def charge() -> JobSpec:
    """One charge, known by its order: asked for twice it is the same job."""
    order = next(_orders)
    card = "stolen" if random.random() < 0.02 else "4242"
    kwargs = {"order": order, "amount_cents": random.randrange(500, 20_000), "card": card}
    return JobSpec(
        "billing.charge", kwargs=kwargs, queue="billing", priority="high", job_id=f"charge-{order}"
    )


def contact() -> JobSpec:
    """One contact; one in fifty has a name that the CRM refuses."""
    customer = random.randrange(9_000)
    name = random.choice(_NAMES) + ("\u202e" if random.random() < 0.02 else "")
    key = f"contact-{customer}"  # one sync a customer at a time
    return JobSpec(
        "crm.sync_contact", [customer, name], queue="crm-sync", unique_key=key, delay=random.uniform(0, 20)
    )


def report() -> JobSpec:
    """One report, in a while."""
    kind = random.choice(["sales", "stock", "tax"])
    return JobSpec(
        "reports.build",
        [kind, datetime.now(UTC).date().isoformat()],
        queue="reports",
        priority="low",
        delay=30,
    )


def seed() -> list[JobSpec]:
    """Work for the first quarter of an hour, so that the first look shows something."""
    return [mail("reminder", delay=random.uniform(5, 900)) for _ in range(400)] + [hook() for _ in range(40)]


def ticks() -> Iterator[list[JobSpec]]:
    """Yield what comes in each TICK_S, for ever."""
    for tick in itertools.count():
        specs = [hook() for _ in range(random.randrange(0, 6))] + [
            mail("receipt") for _ in range(random.randrange(0, 4))
        ]
        if random.random() < 0.5:
            specs.append(charge())
        if random.random() < 0.5:
            specs.append(contact())
        if tick % 20 == 0:
            specs.append(report())
        if tick % 240 == 120:  # every two minutes a newsletter goes out
            specs += [mail("newsletter", delay=random.uniform(0, 60)) for _ in range(250)]
        yield specs


def main() -> None:
    """Send until told to stop."""
    away = False
    pending = seed()
    for specs in ticks():
        pending += specs
        try:
            if sum(each.ready for each in Inspector(connection()).overview()) < FULL:
                enqueue_many(pending)
            pending = []
            away = False
        except QueueOpsError as error:
            if not away:
                print(f"traffic waits: {error}", flush=True)
            away = True
            pending = pending[-FULL:]
        time.sleep(TICK_S)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
