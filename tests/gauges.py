"""Print the sizes of the code: `make gauges`. A figure that stands out is a reason to look, never a reason to fail."""

from collections import Counter

from tests.sources import SOURCES, TESTS, name_of, read_facts, read_text


def list_percentiles(values: list[int]) -> str:
    ordered = sorted(values)
    median, most = ordered[len(ordered) // 2], ordered[-1]
    return f"median {median}, nine of ten up to {ordered[len(ordered) * 9 // 10]}, largest {most}"


def print_largest(title: str, sizes: dict[str, int], beyond: int) -> None:
    large = sorted(((size, name) for name, size in sizes.items() if size > beyond), reverse=True)
    print(f"{title}: {list_percentiles(list(sizes.values()))}; {len(large)} beyond {beyond}")
    for size, name in large[:10]:
        print(f"  {size:5d}  {name}")


def main() -> None:
    functions = [each for path in SOURCES for each in read_facts(path).functions]
    files = {name_of(path): len(read_text(path).splitlines()) for path in (*SOURCES, *TESTS)}
    folders = Counter(name.rpartition("/")[0] for name in files if not name.endswith("__init__.py"))
    print_largest("lines of a file", files, 700)
    print_largest("lines of a function, docstring apart", {each.where: each.lines for each in functions}, 50)
    print_largest("parameters of a function", {each.where: each.parameters for each in functions}, 6)
    print_largest("depth of nested blocks", {each.where: each.nesting for each in functions}, 3)
    print_largest("modules of a folder", dict(folders), 20)
    print(f"places formatted by hand: {sum(read_text(path).count('# fmt: skip') for path in SOURCES)}")


if __name__ == "__main__":
    main()
