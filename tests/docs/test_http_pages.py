"""The reference of the HTTP API is that of the table, and every error code says what to do."""

from __future__ import annotations

import pytest

from mainspring.api.openapi import manifest_schema
from mainspring.api.openapi.document import answered_errors
from tests.docs.http_pages import DOCS, PAGES, written
from tests.docs.what_to_do import WHAT_TO_DO


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_as_the_table_has_it(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == written(page), "write it anew: make docs"


def test_the_schema_of_manifests_is_as_the_types_have_it() -> None:
    published = (DOCS / "manifest.schema.json").read_text(encoding="utf-8")
    assert published == manifest_schema.text(), "write it anew: make docs"


def test_every_error_code_says_what_to_do() -> None:
    assert WHAT_TO_DO.keys() == {kind.code for kind in answered_errors()}
