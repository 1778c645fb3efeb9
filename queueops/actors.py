"""People as the record names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser


class Who(TypedDict):
    """Who acts: `user:<pk>`, and the name that it has now, 150 characters at most."""

    actor: str
    actor_name: str


def who(user: AbstractBaseUser | AnonymousUser) -> Who:
    """Name a user of the site."""
    return Who(actor=f"user:{user.pk}", actor_name=user.get_username()[:150])
