"""References to secrets in definitions: read, written, masked and bounded."""

from __future__ import annotations

import msgspec
import pytest

import mainspring
from mainspring.errors import ValidationError
from mainspring.model.access.masking import masked
from mainspring.model.manifests.job_spec import job_spec_of, read_job
from mainspring.model.secrets.references import MOST_REFERENCES, SecretReference
from mainspring.model.tasks.define_http import http
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.jobs import Definition, secrets_of
from mainspring.model.tasks.read_definition import read_definition

REFERENCE = {"$secret": "shop-db"}


def test_a_definition_goes_through_json_and_back() -> None:
    made = define(command(["psql"], env={"PGPASSWORD": mainspring.secret("shop-db"), "LANG": "C"}), {})
    told = msgspec.to_builtins(made)
    assert told["run"]["env"] == {"PGPASSWORD": REFERENCE, "LANG": "C"}
    assert read_definition(told) == made
    assert msgspec.json.decode(msgspec.json.encode(made), type=Definition) == made
    assert secrets_of(made.run) == {"shop-db"}


def test_a_reference_is_shown_and_a_plain_secret_is_not() -> None:
    made = define(http("GET", "https://shop.example", headers={"Authorization": REFERENCE, "X-Token": "t0k"}), {})  # type: ignore[dict-item]
    assert msgspec.to_builtins(masked(made))["run"]["headers"] == {"Authorization": REFERENCE, "X-Token": "***"}


@pytest.mark.parametrize(
    "run",
    [{"command": ["psql"], "env": {"P": REFERENCE}}, {"http": "GET https://a.example", "headers": {"P": REFERENCE}}],
)
def test_a_manifest_says_a_reference_as_it_was_read(run: dict[str, object]) -> None:
    made = read_job(run)
    assert secrets_of(made.run) == {"shop-db"}
    assert read_job(job_spec_of(made)) == made
    assert msgspec.json.encode(job_spec_of(made)).count(b"$secret") == 1
    assert "definition" not in job_spec_of(made)


@pytest.mark.parametrize("value", [{}, {"$secret": ""}, {"$secret": ".."}, {"$secret": 1}, {"$secret": "a", "b": 1}, 7])
def test_what_is_no_reference_is_refused_with_its_member(value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        read_definition({"run": {"type": "command", "argv": ["psql"], "env": {"P": value}}})
    assert raised.value.field == "run.env"


def test_a_job_refers_to_a_bounded_number_of_secrets() -> None:
    many = {f"V{number}": SecretReference(f"s{number}") for number in range(MOST_REFERENCES + 1)}
    with pytest.raises(ValidationError, match="refers to 51 secrets"):
        command(["psql"], env=many)
    many.popitem()
    command(["psql"], env=many)
