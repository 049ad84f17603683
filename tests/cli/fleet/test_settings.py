"""`mainspring settings …` on a real database, and over HTTP."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_settings_are_listed_set_and_reset(cli: Cli) -> None:
    header, *lines = cli("settings").out.splitlines()
    assert header == "name\tvalue\tdefault\tchanged\tmeaning"
    assert [line.split("\t")[:3] for line in lines if line.startswith("aging")] == [["aging", "1m", "1m"]]
    assert cli("settings", "set", "aging", "90s").err == "aging is 1m30s\n"
    assert cli("settings", "get", "aging").out == "1m30s\n"
    assert cli("settings", "--json").json["aging"] == 90.0
    assert cli("settings", "set", "default_expires", "1d").err == "default_expires is 1d\n"
    assert cli("settings", "get", "default_expires", "--json").json["value"] == 86400.0
    assert cli("settings", "set", "max_queued", "500", "--json").json["value"] == 500
    assert cli("settings", "set", "default_timeout", "off").code == 0
    view = cli("settings", "get", "default_timeout", "--json").json
    assert (view["value"], view["default"], view["is_set"]) == ("off", 86400.0, True)
    assert cli("settings", "reset", "max_queued").err == "max_queued is not set\n"
    assert cli("settings", "list", "--json").json["max_queued"] is None


def test_a_wrong_name_or_value_is_refused_with_what_was_meant(cli: Cli) -> None:
    refused = cli("settings", "set", "agin", "60")
    assert (refused.code, "did you mean aging?" in refused.err) == (2, True)
    assert cli("settings", "get", "agin").code == cli("settings", "reset", "agin").code == 2
    assert cli("settings", "set", "max_queued", "-1").code == 2
    assert "or off" in cli("settings", "set", "aging", "never").err
