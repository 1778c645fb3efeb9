"""The way in for HTTP and WebSocket: `uvicorn dashboard.asgi:application`."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
try:
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if settings.SECRET_KEY_IS_LOCAL and not settings.DEBUG:
        raise ImproperlyConfigured(
            "set SECRET_KEY (any long random text) or, on your own machine only, DEBUG=1"
        )
    django_application = get_asgi_application()  # before the imports below, which need the apps
except ImproperlyConfigured as error:
    sys.exit(f"QueueOps is not configured: {error}")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter

from dashboard.garbage import spare_requests
from dashboard.routing import SameOriginOnly, websocket_urlpatterns
from dashboard.static_files import with_static_files

application = ProtocolTypeRouter(
    {
        "http": with_static_files(django_application),
        "websocket": SameOriginOnly(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
spare_requests()
