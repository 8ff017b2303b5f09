"""Audit log: bounded size under a flood of refusals, without losing a change that was made."""

from cloud_hub.registry.audit import AuditEntry, AuditLog


def entry(status: int = 200, at_ms: int = 0, subject: str = "") -> AuditEntry:
    return AuditEntry(at_ms, "admin", "", "POST", "/v1/x", subject, status, "127.0.0.1")


def test_changes_are_all_written_and_a_flood_of_refusals_is_counted(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    for _ in range(1000):
        audit.write(entry(401, at_ms=1))
    for number in range(100):
        audit.write(entry(200, at_ms=1, subject=str(number)))
    found = audit.last_entries(500)
    assert len([e for e in found if e.status == 401]) == 50
    assert [e.subject for e in found if e.status == 200] == [str(number) for number in range(100)]
    assert sum(e.missed for e in found) == 950


def test_two_files_of_bounded_size_are_kept(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl", max_bytes=2000)
    for number in range(200):
        audit.write(entry(subject=str(number)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000
    assert audit.last_entries(3)[-1].subject == "199"


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    audit.write(entry(subject="whole"))
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"at_ms":1,"cal')
    assert [e.subject for e in audit.last_entries(10)] == ["whole"]


def test_a_folder_that_is_gone_stops_nothing(tmp_path):
    audit = AuditLog(tmp_path / "gone" / "audit.jsonl")
    audit.write(entry())
    assert audit.lost == 1
    assert audit.last_entries(10) == []
