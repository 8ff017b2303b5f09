"""Commands `skerry policy ...`: check a policy, explain its decisions, probe it, compare two, start from a template.

Rule: every command works on files alone, without a device, a hub or a model, and decides with the device's own code.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_agent.cli import policy_files
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_text, replace_text_file, write_new_file
from wire.process.terminal import TYPER_SETTINGS, require_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.model.policy import Policy

app = typer.Typer(
    **TYPER_SETTINGS,
    help="Policies: check a document, explain what it decides, probe it, compare two, publish it.",
)

Files = Annotated[
    list[Path],
    typer.Argument(
        callback=policy_files.require_documents, help="A policy document (TOML), or all its layers.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def check(
    documents: Files,
    *,
    no_field_above: Annotated[
        str, typer.Option("--no-field-above", metavar="P0..P3", help="Prove that no field above this label can leave.")
    ] = "",
    region: Annotated[str, typer.Option("--region", help="The proof is about this region alone.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check that a policy is sound: show what it allows at most, and warn of what can have no effect.

    Exit codes: 11 if it contradicts itself or has expired, 42 if what was to be proven does not hold.

    Example: skerry policy check policy.toml
    """
    from edge_agent.cli.policy_check import check_policy_files  # noqa: PLC0415

    report = check_policy_files(documents, no_field_above, region)
    if as_json:
        _print_json(report.as_dict())
    else:
        typer.echo("\n".join(report.text_lines()))
    report.exit_by_outcome()


@app.command()
def explain(
    documents: Files,
    *,
    context: Annotated[str, typer.Option("--context", help="A sample: JSON, or a JSON or TOML file.")] = "",
    as_json: AsJson = False,
) -> None:
    """Explain what happens to a sample, decision by decision; then which layer and rule sets each key.

    The sample needs `confidence` and `data_class`. What the device is and where it stands is unknown where it is left
    out; `time` left out is now. docs/policies.md lists all keys.

    Example: skerry policy explain policy.toml --context sample.json
    """
    from policies.analysis.explain import explain_sample  # noqa: PLC0415
    from policies.analysis.facts import build_context  # noqa: PLC0415
    from policies.analysis.summary import summarise_layers  # noqa: PLC0415
    from policies.model.reasons import Denied  # noqa: PLC0415
    from policies.model.terms import resolve_terms  # noqa: PLC0415

    policy = policy_files.read_policy(documents)
    if not context:
        _show_layers(policy, as_json=as_json)
        return
    facts, clock = _parse_facts(context), policy_files.read_local_times(policy.zones)
    told = explain_sample(policy, facts, policy_files.read_today(), clock)
    found = resolve_terms(policy, build_context(policy, facts, clock))
    keys = () if isinstance(found, Denied) else summarise_layers(policy, found)
    if as_json:
        _print_json({**told.as_dict(), "keys": [{"key": k.key, "said": k.said, "holds": k.holds} for k in keys]})
        return
    *steps, result = told.format_lines()
    typer.echo("\n".join([*steps, typer.style(result, fg="green" if told.leaves else "yellow")]))
    met = [key for key in keys if len(key.said) > 1]
    typer.echo(
        "\n".join(["", *_align_rows([(key.key, key.format_line()) for key in met])]) if met else "", nl=bool(met)
    )


@app.command("test")
def run_probes(
    documents: Annotated[
        list[Path],
        typer.Argument(
            callback=policy_files.require_documents,
            help="The document or its layers; last a probes file, if there.",
            show_default=False,
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Run probes: sample cases with their expected decisions, by default those in NAME.probes.toml beside the document.

    They are decided as of the day on which the youngest document was issued, so that the outcome does not change with
    the calendar. Exit code 43 if a case comes out otherwise.

    Example: skerry policy test policy.toml probes.toml
    """
    from policies.analysis.probes import run_probe  # noqa: PLC0415
    from policies.model.context import date_to_day  # noqa: PLC0415

    layers, cases = policy_files.split_probes(documents)
    policy = policy_files.read_policy(layers)
    day = max(date_to_day(part.issued) for part in policy.layers)
    outcomes = [run_probe(policy, case, day) for case in policy_files.read_probes(cases)]
    failed = [each for each in outcomes if each.faults]
    if as_json:
        rows = [{"name": each.name, "faults": each.faults} for each in outcomes]
        _print_json({"policy": policy.hash, "cases": len(outcomes), "failed": len(failed), "outcomes": rows})
    else:
        for each in failed:
            typer.echo(typer.style("failed", fg="red") + f"  {each.name}: {'; '.join(each.faults)}")
            typer.echo("\n".join(f"        {line}" for line in each.told.format_lines()))
        typer.echo(f"{len(outcomes) - len(failed)} of {len(outcomes)} cases of {cases} as expected")
    if failed:
        raise typer.Exit(ExitCode.PROBE)


@app.command()
def diff(
    before: Annotated[
        Path, typer.Argument(callback=policy_files.require_documents, help="A policy document.", show_default=False)
    ],
    after: Annotated[
        Path,
        typer.Argument(
            callback=policy_files.require_documents, help="Another, or its next version.", show_default=False
        ),
    ],
    *,
    under: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            callback=policy_files.require_documents,
            help="A layer that both are combined with; may be repeated.",
        ),
    ] = None,
    only_narrower: Annotated[
        bool, typer.Option("--only-narrower", help="Exit code 44 if the second allows anything the first does not.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two policies: show what becomes allowed and what forbidden from the first to the second, case by case.

    Exit code 42 if their rules distinguish too many cases to compare, 44 with --only-narrower if the second is wider.

    Example: skerry policy diff before.toml after.toml
    """
    from policies.analysis.cases import TooManyCasesError  # noqa: PLC0415
    from policies.analysis.diff import diff_policies as compare  # noqa: PLC0415

    layers = under or []
    try:
        changes = compare(policy_files.read_policy([before, *layers]), policy_files.read_policy([after, *layers]))
    except TooManyCasesError as error:
        raise ExitError(ExitCode.UNPROVEN, f"not compared: {error}") from None
    if as_json:
        import msgspec  # noqa: PLC0415

        _print_json({"changes": msgspec.to_builtins(changes)})
    else:
        typer.echo("\n".join(_format_change(each) for each in changes) or "no difference in what may leave")
    if only_narrower and any(each.direction == "wider" for each in changes):
        raise typer.Exit(ExitCode.WIDER)


@app.command()
def show(
    template: Annotated[str, typer.Argument(help="Its name; without one all are listed.")] = "",
) -> None:
    """Print a shipped template as of today, or list the templates.

    Example: skerry policy show clinic
    """
    if template:
        typer.echo(policy_files.render_template(template), nl=False)
        return
    for name in policy_files.TEMPLATES:
        typer.echo(f"{name:<14} {policy_files.describe_template(name)}")


@app.command()
def new(
    template: Annotated[str, typer.Argument(help="; ".join(policy_files.TEMPLATES), show_default=False)],
    file: Annotated[Path | None, typer.Argument(help="TEMPLATE.toml if left out.", show_default=False)] = None,
) -> None:
    """Write a template to start from, issued today, and its probes beside it. Existing files are not overwritten.

    Example: skerry policy new clinic policy.toml
    """
    path = file or Path(f"{template}.toml")
    text = policy_files.render_template(template)
    write_new_file(path, text)
    typer.echo(f"wrote {path}; next: skerry policy explain {path} --context '{{...}}'")
    if template in policy_files.PROBED:
        probes = policy_files.probes_path(path)
        write_new_file(probes, policy_files.read_shipped(template, ".probes.toml"))
        typer.echo(f"wrote {probes}; next: skerry policy test {path}")


@app.command()
def calibrate(
    file: Annotated[Path, typer.Argument(callback=policy_files.require_documents, help="The policy document (TOML).")],
    bundle: Annotated[
        Path,
        typer.Option(callback=require_path, help="The bundle whose calibrated threshold it takes.", show_default=False),
    ],
    as_json: AsJson = False,
) -> None:
    """Write a bundle's calibrated threshold into a policy, as its next version.

    A device then asks about as many samples as the forge has promised. Nothing else of the document changes.

    Example: skerry policy calibrate policy.toml --bundle bundle
    """
    from models.bundle.bundle import read_manifest  # noqa: PLC0415 - the other commands need no bundle

    figures = read_manifest(bundle).calibration
    text = read_file_text(file, ExitCode.POLICY)
    try:
        written = policy_files.set_threshold(text, figures.threshold)
    except ValueError as error:
        raise ExitError(ExitCode.POLICY, f"{file}: {error}") from None
    if written != text:
        replace_text_file(file, written)
    if as_json:
        _print_json({"threshold": figures.threshold, "samples": figures.samples, "changed": written != text})
        return
    if written == text:
        typer.echo(f"{file}: its threshold is the bundle's already")
        return
    calibrated = f"as {bundle} was calibrated on {figures.samples} samples"
    typer.echo(f"{file}: asks below {figures.threshold:.4g}, {calibrated}; next version")


def _parse_facts(context: str) -> Any:
    """The sample of the option --context. ExitError(SAMPLE) names the key that is missing or wrong."""
    from policies.analysis.facts import FactsError, parse_facts  # noqa: PLC0415

    try:
        return parse_facts(policy_files.read_sample(context))
    except FactsError as error:
        raise ExitError(ExitCode.SAMPLE, f"sample: {error}") from None


def _show_layers(policy: "Policy", *, as_json: bool) -> None:
    """Show the policy's upper bound alone: without a sample no rule applies for certain."""
    from policies.analysis.summary import summarise_layers, summarise_policy  # noqa: PLC0415

    keys = summarise_layers(policy, policy.base)
    if as_json:
        _print_json({"policy": policy.hash, "keys": [{"key": k.key, "said": k.said, "holds": k.holds} for k in keys]})
        return
    rules = [line for line in summarise_policy(policy) if line.startswith("rule ")]
    typer.echo("\n".join([*_align_rows([(key.key, key.format_line()) for key in keys]), *rules]))


def _align_rows(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(key) for key, _ in rows)
    return [f"{key:<{width}}  {text}" for key, text in rows]


def _format_change(change: Any) -> str:
    """A change as one line, its direction in red (wider), green (narrower) or yellow."""
    colour = {"wider": "red", "narrower": "green"}.get(change.direction, "yellow")
    where = f" ({change.when})" if change.when else ""
    return typer.style(f"{change.direction:<9}", fg=colour) + f" {change.key}: {change.before} -> {change.after}{where}"


def _print_json(values: "Mapping[str, Any]") -> None:
    typer.echo(json.dumps(values, indent=2))
