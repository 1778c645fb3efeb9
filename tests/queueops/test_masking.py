"""Secrets are found by name and by form, and leave texts that repeat them."""

import pytest

from queueops.masking import MASK, is_secret, mask, mask_text, redact, secrets_in


@pytest.mark.parametrize(
    "name",
    [
        "password", "PASSWORD", "db_password", "userPassword", "api_token", "apiToken", "APIToken", "api-key",
        "apiKey", "X-Api-Key", "Authorization", "client_secret", "private.key", "Set-Cookie", "card_number",
        "cvv", "PIN", "credit_card", "creditCard", "CreditCardNumber", "creditcard", "iban", "iban_number",
    ],
)  # fmt: skip
def test_secret_names_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["note", "author", "tokenizer", "max_tokens", "token_count", "monkey", "order", "card", "credit", "", 7],
)
def test_other_names_are_not_secret(name: object) -> None:
    assert not is_secret(name)


def test_names_of_the_site_count_too() -> None:
    assert is_secret("Tax_Id", ["tax_id"])
    assert mask({"tax_id": "x1"}, ["tax_id"]) == ({"tax_id": MASK}, 1)


def test_values_are_masked_at_any_depth_and_the_rest_is_kept() -> None:
    given = {
        "password": "pw1",
        "nested": [{"api_token": {"a": ["t2"]}}],
        "note": "ok",
        "pair": ["Cookie", "c3"],
    }

    shown, found = mask(given)

    assert shown == {
        "password": MASK,
        "nested": [{"api_token": MASK}],
        "note": "ok",
        "pair": ["Cookie", MASK],
    }
    assert found == 3
    assert given["password"] == "pw1"


def test_a_form_field_written_out_is_masked_by_its_name() -> None:
    assert mask({"name": "password", "value": "pw1"}) == ({"name": "password", "value": MASK}, 1)


def test_tokens_and_urls_are_known_by_their_form() -> None:
    assert mask(["Bearer abc"]) == ([MASK], 1)
    assert mask_text("GET https://u:pw1@api.example/x?token=t2&page=3 failed") == (
        f"GET https://u:{MASK}@api.example/x?token={MASK}&page=3 failed"
    )


def test_empty_values_are_no_secrets() -> None:
    assert mask({"password": "", "token": None, "is_secret": False}) == (
        {"password": "", "token": None, "is_secret": False},
        0,
    )


def test_a_text_that_repeats_a_secret_loses_it() -> None:
    secrets = secrets_in({"password": "pw1", "headers": {"Authorization": "Bearer t2x"}, "pin": 77})

    assert redact("401 for pw1 with t2x", secrets) == f"401 for {MASK} with {MASK}"
    assert "77" not in secrets  # too short to look for
