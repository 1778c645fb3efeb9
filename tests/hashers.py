"""Quick password hashing for tests."""

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class QuickHasher(PBKDF2PasswordHasher):
    """Django's own algorithm in one round: a web server with the real settings accepts its hashes."""

    iterations = 1
