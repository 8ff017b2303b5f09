"""Bytes of a JPEG's scan, the baseline of CIFAR-10."""

from benchmarks.forge.cifar10 import measure_scan_bytes


def test_the_scan_is_what_lies_between_its_header_and_the_end_of_the_file():
    tables, scan = b"\xff\xd8\xff\xdb\x00\x04ab", bytes(range(100))
    header = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    assert measure_scan_bytes(tables + header + scan + b"\xff\xd9") == 100
