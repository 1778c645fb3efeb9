"""What the shop does in the background. The same file before and after."""

from celery import shared_task


class Declined(Exception):
    """The bank said no, for now."""


@shared_task(bind=True, autoretry_for=(Declined,), retry_kwargs={"max_retries": 3, "countdown": 0.2})
def charge(self, order, cents):
    """Charge an order; the bank declines the first time."""
    if self.request.retries == 0:
        raise Declined(order)
    return f"{order}: {cents} cents, try {self.request.retries + 1}"


@shared_task
def remind(customer):
    """Write to a customer."""
    return f"dear {customer}"
