"""Use the site as a person does: log in, read pages, send their forms."""

from __future__ import annotations

import re
from html import unescape
from http.cookiejar import CookieJar
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

PASSWORD: Final = "only for the demonstration"  # noqa: S105  # of users that live as long as it
_TIMEOUT: Final = 30


class Person:
    """Somebody in front of the admin."""

    def __init__(self, name: str, *, site: str) -> None:
        """Log in."""
        self._site = site
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))
        self.read("/admin/login/")
        self.send("/admin/login/", username=name, password=PASSWORD, next="/admin/")

    def read(self, path: str) -> str:
        """Return a page."""
        return self._answer(path, None)[1]

    def send(self, path: str, **fields: str) -> tuple[int, str]:
        """Send a form with the site's token; return the status and the page that comes."""
        token = next(cookie.value or "" for cookie in self._cookies if cookie.name == "csrftoken")
        return self._answer(path, urlencode({**fields, "csrfmiddlewaretoken": token}).encode())

    def letters(self, text: str) -> list[str]:
        """Return the addresses of the dead letters in which a text stands."""
        page = self.read(f"/admin/celery_reliable/deadletter/?{urlencode({'text': text})}")
        return [unescape(found) for found in re.findall(r'href="([^"]+/change/)">webshop', page)]

    def _answer(self, path: str, body: bytes | None) -> tuple[int, str]:
        try:
            with self._opener.open(self._site + path, body, timeout=_TIMEOUT) as answer:
                return int(answer.status), answer.read().decode()
        except HTTPError as exc:
            return exc.code, exc.read().decode()
