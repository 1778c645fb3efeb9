"""Python's garbage collector, told what a web process needs of it."""

import gc


def spare_requests() -> None:
    """Leave all that stands now out of later collections, and make full ones rare.

    A full collection looks at every object of Django, Celery and the templates, some 100 ms in which the
    process answers nobody; with fifty queues it came every twentieth page. Cycles of requests are young
    and are still found by the small collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
