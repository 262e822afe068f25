"""Serve a page of the admin that shows the store instead of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.template.response import TemplateResponse
from django.urls import path, reverse
from kombu.exceptions import OperationalError

from celery_reliable.cli.screens import printable
from celery_reliable.errors import ReliableError

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from celery_reliable.django.project import Project

View = Callable[..., Any]


class StoreAdmin(admin.ModelAdmin):
    """Pages over the store. A subclass says in `routes` which there are.

    Every page needs a login and the permission to view; an action asks for its own. Errors of store and broker are a
    page with status 503, never a trace.
    """

    def routes(self) -> Iterator[tuple[str, View, str]]:
        """Iterate over (route, view, name)."""
        raise NotImplementedError

    @property
    def project(self) -> Project:
        """The project's Celery app and store."""
        found: Project = apps.get_app_config("celery_reliable").project
        return found

    def get_urls(self) -> list[Any]:
        """Return our pages in place of those over rows."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [path(route, self._served(view), name=f"{name}_{short}") for route, view, short in self.routes()]

    def url(self, short: str, *names: str) -> str:
        """Return the address of one of our pages."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{short}"
        return str(reverse(name, args=[quote(one) for one in names], current_app=self.admin_site.name))

    def page(self, request: HttpRequest, template: str, *, title: str, status: int = 200, **context: Any) -> Any:
        """Return a page in the admin's frame."""
        request.current_app = self.admin_site.name
        everywhere = {**self.admin_site.each_context(request), "opts": self.opts, "title": printable(title)}
        everywhere |= {"list_url": self.url("changelist")}
        return TemplateResponse(
            request, f"admin/celery_reliable/{template}.html", {**everywhere, **context}, status=status
        )

    def may(self, request: HttpRequest, action: str) -> bool:
        """Tell whether the user has a permission of ours."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.{action}"))

    def demand(self, request: HttpRequest, action: str) -> None:
        """Refuse a user without that permission."""
        if not self.may(request, action):
            raise PermissionDenied

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes rows here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes rows here."""
        return False

    def _served(self, view: View) -> View:
        """Put login, CSRF, the permission to view and our errors around a view.

        Outside ``ATOMIC_REQUESTS``: what is done in the store stays done, so its line in the log must stay, too.
        """

        def guarded(request: HttpRequest, **names: str) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                return view(request, **{name: unquote(text) for name, text in names.items()})
            except (ReliableError, OperationalError) as exc:
                return self.page(request, "error", title="Not available now", status=503, error=printable(str(exc)))

        served = self.admin_site.admin_view(guarded)
        for alias in connections:
            served = transaction.non_atomic_requests(using=alias)(served)
        served.model_admin = self
        return update_wrapper(served, view)
