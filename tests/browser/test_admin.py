"""The admin's pages as a person uses them, in a real Chromium: ``make test-browser``.

With ``CR_TEST_SCREENSHOTS`` they are written into that folder, for the documentation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from celery_reliable.testing.servers.ports import free_port
from tests.browser.chromium import Browser, PageError
from tests.browser.scene import PASSWORD
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
NUMBER = 400
LETTERS = "/admin/celery_reliable/deadletter/"


class Site:
    """The example's Django project behind Django's own server."""

    def __init__(self, folder: Path, *, redis_url: str) -> None:
        """Fill it and start it."""
        self.redis_url = redis_url
        self.url = f"http://127.0.0.1:{free_port()}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEBSHOP_DIRECTORY": str(folder)}
        environment |= {"DJANGO_SETTINGS_MODULE": "example_project.webshop.settings", "WEBSHOP_BROKER_URL": redis_url}
        environment |= {"WEBSHOP_STORE_URL": "django://default"}
        subprocess.run(
            [sys.executable, "-m", "tests.browser.scene", str(NUMBER)], cwd=ROOT, env=environment, check=True
        )
        log = (folder / "site.log").open("wb")
        command = [sys.executable, "-m", "django", "runserver", "--noreload", self.url.removeprefix("http://")]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        log.close()
        wait_until(lambda: b"Quit the server" in (folder / "site.log").read_bytes(), 60, "the site is up")

    def waiting(self) -> int:
        """Count the messages in the queues of the replayed calls."""
        with redis.Redis.from_url(self.redis_url) as broker:
            return int(broker.llen("payments")) + int(broker.llen("strange"))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Iterator[Site]:
    """A site with letters."""
    site = Site(tmp_path, redis_url=redis_url)
    yield site
    site.close()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser without cookies."""
    browser = Browser()
    yield browser
    browser.close()


def log_in(browser: Browser, site: Site, name: str) -> None:
    """Fill in the login."""
    browser.open(f"{site.url}/admin/login/")
    browser.fill("#id_username", name)
    browser.fill("#id_password", PASSWORD)
    browser.click("input[type=submit]")


def shot(browser: Browser, name: str, *, height: int = 800) -> None:
    """Write a screenshot, if wanted."""
    folder = os.environ.get("CR_TEST_SCREENSHOTS")
    if folder:
        browser.run("document.activeElement.blur()")
        browser.screenshot(Path(folder) / f"{name}.png", height=height)


def test_an_operator_repairs_what_died(site: Site, browser: Browser) -> None:
    """List, filter, groups, a letter, edit and replay, replay of a group with progress, keys, beat."""
    log_in(browser, site, "ann")
    browser.open(site.url + LETTERS)
    assert "100 shown" in browser.text()
    browser.fill("#id_queue", "payments")
    browser.click("#reliable-filter button")
    assert "window.owned" not in browser.text()
    shot(browser, "letters")

    browser.fill("#id_error", "Timeout*")
    browser.click("#reliable-filter button")
    assert "the bank did not answer" in browser.text()
    assert "was declined" not in browser.text()

    browser.open(f"{site.url}{LETTERS}groups/")
    assert "4 groups" in browser.text()
    browser.open(f"{site.url}{LETTERS}groups/?queue=payments")
    assert "3 groups" in browser.text()
    shot(browser, "groups", height=640)

    look_at_markup(browser, site)
    edit_and_replay(browser, site)
    replay_a_group(browser, site)
    release(browser, site)

    browser.open(f"{site.url}/admin/celery_reliable/beatentry/")
    assert "beat-1 pid 7 leads for" in browser.text()
    assert "1 stands by" in browser.text()
    shot(browser, "entries", height=520)
    browser.click('a[href*="newsletter"]')
    assert "was dropped: it could not start before its start_deadline" in browser.text()
    shot(browser, "beat", height=700)
    browser.click(".object-tools a")
    assert "Change periodic task" in browser.text()


def look_at_markup(browser: Browser, site: Site) -> None:
    """The newest letter has a script in payload and stack: it is text."""
    browser.open(site.url + LETTERS)
    browser.click("#result_list tbody tr:first-child a")
    assert "<script>window.owned = 1</script>" in browser.text()
    for path in (LETTERS, f"{LETTERS}groups/"):
        browser.open(site.url + path)
        assert "<script>window.owned" in browser.text()
        assert browser.run("typeof window.owned") == "undefined"


def edit_and_replay(browser: Browser, site: Site) -> None:
    """What does not fit is refused in the form; what does is in the queue."""
    browser.open(f"{site.url}{LETTERS}?text=A-396")
    browser.click("#result_list tbody a")
    shot(browser, "letter", height=1000)
    browser.click("form.reliable-acts a[href$='/edit/']")
    browser.fill("#id_kwargs", '{"colour": "red"}')
    browser.click(".submit-row input")
    assert "unexpected keyword argument" in browser.text()
    shot(browser, "edit", height=760)
    browser.fill("#id_kwargs", '{"card": "4242"}')
    browser.click(".submit-row input")
    assert "Replayed with other arguments" in browser.text()
    assert "ann" in browser.run("document.querySelector('.reliable-history').innerText")
    assert site.waiting() == 1


def replay_a_group(browser: Browser, site: Site) -> None:
    """Everything that fits, in steps that the page takes by itself, until it is stopped and goes on."""
    browser.open(f"{site.url}{LETTERS}?reason=permanent")
    browser.press("input[name=everything]")
    browser.choose("select[name=action]", "replay")
    browser.click("#reliable-letters .actions button")
    assert "every dead letter that matches" in browser.text()
    browser.click(".submit-row input")
    assert browser.run("document.querySelector('progress').max") == NUMBER
    shot(browser, "replay", height=480)
    browser.wait("document.getElementById('reliable-batch').innerText.includes('Finished.')")
    replayed = int(browser.run("document.querySelector('.reliable-count strong').textContent"))
    assert replayed > 100
    assert site.waiting() == replayed + 1
    browser.open(f"{site.url}{LETTERS}?reason=permanent")
    assert "No dead letters match" in browser.text()


def release(browser: Browser, site: Site) -> None:
    """A stuck lease, looked up by its key."""
    browser.open(f"{site.url}/admin/celery_reliable/key/")
    browser.fill("#reliable-q", "charge:A-4711")
    browser.click("#reliable-filter button")
    assert "celery@web-7" in browser.text()
    shot(browser, "key", height=824)
    browser.click("input[value='Release the lease']")
    assert "Released from k3Jd02.1f." in browser.text()


def test_who_may_only_look_is_denied(site: Site, browser: Browser) -> None:
    """There is no button, and a request that the browser is made to send is answered 403."""
    log_in(browser, site, "bob")
    browser.open(site.url + LETTERS)
    assert browser.run("document.querySelector('select[name=action]')") is None
    forged = """(async () => {
        const form = new FormData(document.querySelector('#reliable-letters'));
        form.set('action', 'discard'); form.set('everything', 'on');
        return (await fetch(document.querySelector('#reliable-letters').action, {method: 'POST', body: form})).status;
    })()"""
    assert browser.run(forged) == 403
    browser.run(f"void (location.href = '{LETTERS}ask/')")
    browser.open(f"{site.url}/admin/celery_reliable/key/")
    assert "403 Forbidden" in browser.text()


def test_a_missing_browser_fails_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a missing server does; it is not skipped."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CR_TEST_CHROMIUM", raising=False)
    with pytest.raises(Exception, match="apt-get install chromium"):
        Browser()


def test_a_page_that_never_comes_is_an_error(browser: Browser) -> None:
    """And not a wait for ever."""
    with pytest.raises(PageError):
        browser.run("nothing.at.all")
