from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mainspring.server.cluster.identity import Identity


def test_a_server_has_the_same_id_after_a_restart(tmp_path: Path) -> None:
    first = Identity.of(tmp_path / "new")
    first.close()
    second = Identity.of(tmp_path / "new")
    assert (first.id, first.number) == (second.id, second.number)
    second.close()


def test_servers_that_share_a_directory_have_ids_of_their_own(tmp_path: Path) -> None:
    first, second = Identity.of(tmp_path), Identity.of(tmp_path)
    assert first.id != second.id
    assert (first.number, second.number) == (1, 2)
    first.close()
    third = Identity.of(tmp_path)
    assert third.id == first.id, "the place of the first is free"
    second.close()
    third.close()


def test_agents_are_numbered_apart_from_servers(tmp_path: Path) -> None:
    server, first, second = Identity.of(tmp_path), Identity.of(tmp_path, "agent"), Identity.of(tmp_path, "agent")
    assert [one.name_on("web") for one in (server, first, second)] == ["web", "web", "web-2"]
    for one in (server, first, second):
        one.close()


def test_the_id_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    code = "import sys, os; from pathlib import Path; from mainspring.server.cluster.identity import Identity; "
    code += "print(Identity.of(Path(sys.argv[1])).id, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    mine = Identity.of(tmp_path)
    assert str(mine.id) == killed.stdout.strip()
    mine.close()


def test_a_file_that_was_not_written_to_its_end_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "server-1.id").write_bytes(b"4f\xff")
    first = Identity.of(tmp_path)
    first.close()
    assert Identity.of(tmp_path).id == first.id


def test_where_nothing_can_be_kept_the_id_is_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, second = Identity.of(tmp_path / "file"), Identity.of(tmp_path / "file")
    assert first.id != second.id
