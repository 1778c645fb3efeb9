"""What every page of the admin stands on: which right a page asks for, and what it says without Redis."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from queueops.errors import StoreUnavailable
from queueops.rights import Right


def may(request: HttpRequest, *rights: Right) -> bool:
    """Tell whether the visitor holds one of these rights."""
    user: Any = request.user
    return bool(user.is_active and any(user.has_perm(f"queueops.{right}") for right in rights))


class EditedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # takes none at run time
    """Rows that people edit with a right of ours, and that are published to Redis."""

    edit_rights: tuple[Right, ...] = (Right.EDIT_POLICY,)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, Right.VIEW_JOB, *self.edit_rights)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, Right.VIEW_JOB, *self.edit_rights)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may(request, Right.EDIT_POLICY)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, *self.edit_rights)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, Right.EDIT_POLICY)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except StoreUnavailable as error:
            return self._published_later(request, error)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except StoreUnavailable as error:
            return self._published_later(request, error)

    def _published_later(self, request: HttpRequest, error: StoreUnavailable) -> HttpResponse:
        """The change has committed, and Redis could not be told of it."""
        self.message_user(
            request, f"Saved. Workers will see it as soon as Redis is back: {error}", messages.WARNING
        )
        return HttpResponseRedirect("../")
