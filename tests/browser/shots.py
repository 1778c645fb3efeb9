"""`make shots`: a screenshot of every page, light, dark and at a phone's width, filled with sample data.

`python -m tests.browser.shots [NAME …]` writes only those pages, into var/shots; with `--readme` the four
that the README shows, into docs/shots.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
os.environ.setdefault(
    "DJANGO_ALLOW_ASYNC_UNSAFE", "1"
)  # Playwright's loop counts as running; no query is in it

import django

django.setup()

from django.contrib.auth.models import Group, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright  # noqa: E402

from queueops.local_redis import LocalServer, free_port  # noqa: E402
from queueops.store import Store  # noqa: E402
from tests import settings as run  # noqa: E402
from tests.browser.conftest import ARGUMENTS, CHROMIUM  # noqa: E402
from tests.browser.sample import Sample  # noqa: E402
from tests.dashboard.conftest import Site  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
OUT = ROOT / "var" / "shots"
#: What the README shows: page, scheme.
README = (("overview", "light"), ("job-dead", "dark"), ("cause", "light"), ("forecast", "dark"))
WIDE: ViewportSize = {"width": 1320, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


def pages(ids: dict[str, str]) -> dict[str, str]:
    """Name -> path of every page."""
    return {
        "overview": "/",
        "queue-dead": "/queues/webhooks/?state=dead",
        "queue-delayed": "/queues/webhooks/?state=delayed",
        "queue-ready": "/queues/webhooks/?state=ready",
        "queue-pending": "/queues/webhooks/?state=pending",
        "queue-discarded": "/queues/webhooks/?state=discarded",
        "queue-filtered": "/queues/webhooks/?state=dead&handler=webhook.deliver&tag=customer=8801",
        "queue-empty": "/queues/reports/?state=dead",
        "job-dead": f"/queues/webhooks/jobs/{ids['dead']}/",
        "job-delayed": f"/queues/webhooks/jobs/{ids['delayed']}/",
        "job-pending": f"/queues/webhooks/jobs/{ids['pending']}/",
        "job-edit": f"/queues/webhooks/jobs/{ids['dead']}/edit/form/",
        "causes": "/causes/",
        "cause": f"/causes/{ids['cause']}/",
        "forecast": "/forecast/",
        "schedules": "/schedules/",
        "workers": "/workers/",
        "operations": "/operations/",
        "operation": f"/operations/{ids['operation']}/",
        "operation-form": "/operations/new/?queue=webhooks&state=dead",
        "pause-form": "/queues/mail/pause/form/",
        "limits-form": "/queues/webhooks/limits/form/",
        "activity": "/activity/",
        "search": "/search/?q=customer=8801",
        "login": "/login/",
    }


@contextmanager
def site() -> Iterator[tuple[Site, dict[str, str]]]:
    """A filled site on servers of its own."""
    with LocalServer(
        run.RUN_DIR / "redis", port=None, unix_socket=run.REDIS_SOCKET, options={"appendonly": "yes"}
    ):
        call_command("migrate", verbosity=0)
        user = User.objects.create_user("dana", password="sesame", is_staff=True)
        user.groups.add(Group.objects.get(name="Admin"))
        sample = Sample(Store()).fill()
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
        web = Site(free_port(), run.RUN_DIR / "web.log", env)
        web.start()
        try:
            yield web, sample.ids
        finally:
            web.stop()


def main(wanted: list[str]) -> int:
    if CHROMIUM is None:
        print("chromium is not installed: run 'apt-get install chromium' as root")
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    with site() as (web, ids), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        if wanted == ["--readme"]:
            shoot_for_readme(browser, web, ids)
            return 0
        for scheme, size in (("light", WIDE), ("dark", WIDE), ("phone", PHONE)):
            context = browser.new_context(
                base_url=web.url, viewport=size, color_scheme="dark" if scheme == "dark" else "light"
            )
            page = context.new_page()
            if not wanted or "login" in wanted:
                shoot(page, "/login/", f"login-{scheme}")
            log_in(page)
            for name, path in pages(ids).items():
                if name != "login" and (not wanted or name in wanted):
                    shoot(page, path, f"{name}-{scheme}")
            context.close()
        browser.close()
    print(f"Screenshots are in {OUT}")
    return 0


#: Makes a WebP of a PNG: Chromium can, and nothing else here needs to.
TO_WEBP = """async png => {
  const image = new Image();
  image.src = 'data:image/png;base64,' + png;
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), {width: image.width, height: image.height});
  canvas.getContext('2d').drawImage(image, 0, 0);
  return canvas.toDataURL('image/webp', 0.9).split(',')[1];
}"""


def shoot_for_readme(browser: Browser, web: Site, ids: dict[str, str]) -> None:
    """Write what fits on a screen of four pages, small."""
    folder = ROOT / "docs" / "shots"
    folder.mkdir(exist_ok=True)
    for name, scheme in README:
        context = browser.new_context(
            base_url=web.url, viewport=WIDE, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = context.new_page()
        log_in(page)
        page.goto(pages(ids)[name])
        page.wait_for_timeout(250)
        png = base64.b64encode(page.screenshot()).decode()
        blank = context.new_page()
        (folder / f"{name}.webp").write_bytes(base64.b64decode(blank.evaluate(TO_WEBP, png)))
        context.close()
    print(f"Screenshots are in {folder}")


def log_in(page: Page) -> None:
    page.goto("/login/")
    page.fill("#id_username", "dana")
    page.fill("#id_password", "sesame")
    page.click("main button[type=submit]")
    page.wait_for_selector("#live-overview")


def shoot(page: Page, path: str, name: str) -> None:
    answer = page.goto(path)
    if answer is not None and answer.status == 404:
        return  # a page that this site does not have
    page.wait_for_timeout(250)  # one socket message, so that counts stand as pushed
    page.screenshot(path=str(OUT / f"{name}.png"), full_page=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
