"""Channels: where messages go, as people write them, checked; and what of a URL may be shown.

Next: store/alerts/channels.py
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.errors import ValidationError, shown
from mainspring.model.access.masking import MASK, check_unmasked, masked_url
from mainspring.model.alerts.messages import Kind
from mainspring.model.secrets.references import SecretReference, Value
from mainspring.model.tasks.define_http import check_url
from mainspring.model.words.names import check_path_name, check_text

KINDS: tuple[Kind, ...] = ("webhook", "slack")
LEAST_SECRET = 16  # characters


class ChannelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook gets JSON, signed if there is a secret; slack gets text."""

    kind: Kind
    url: Value
    secret: Value | UnsetType | None = UNSET  # left out: one is made for a new webhook, that of another stays
    enabled: bool = True


def read_channel(given: Any) -> ChannelSpec:
    """The spec from its JSON form."""
    try:
        return msgspec.convert(given, ChannelSpec)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        at = path.removesuffix("`").removeprefix("$").removeprefix(".") or "channel"
        raise ValidationError(f"{at}: {reason[:1].lower()}{reason[1:]}", field=at) from None


def checked(spec: ChannelSpec) -> ChannelSpec:
    if spec.kind not in KINDS:
        raise ValidationError(f"kind: {shown(spec.kind)}; use {', '.join(KINDS)}", field="kind")
    check_unmasked(spec)
    if isinstance(spec.url, SecretReference):
        check_path_name(spec.url.secret, field="url")
    else:
        check_channel_url(spec.url)
    if isinstance(spec.secret, (str, SecretReference)):
        if isinstance(spec.secret, SecretReference):
            check_path_name(spec.secret.secret, field="secret")
        elif len(check_text(spec.secret, field="secret", limit=1000)) < LEAST_SECRET:
            raise ValidationError(f"secret: give at least {LEAST_SECRET} characters", field="secret")
        if spec.kind != "webhook":
            raise ValidationError(f"secret: a channel of kind {spec.kind} signs nothing; leave it out", field="secret")
    return spec


def check_channel_url(url: str) -> str:
    check_url(_without_user(check_text(url, field="url")), field="url")
    return url


def _without_user(url: str) -> str:
    try:
        netloc = urlsplit(url).netloc
    except ValueError:
        return url  # it is refused as it is
    return url.replace(netloc, netloc.rpartition("@")[2], 1)


def shown_url(kind: Kind, url: Value) -> str:
    """Without credentials. Slack's path is one as a whole."""
    if isinstance(url, SecretReference):
        return f"secret {url.secret}"
    parts = urlsplit(url)
    if kind == "slack" and parts.path.strip("/"):
        url = parts._replace(path=f"/{MASK}").geturl()
    return masked_url(url)
