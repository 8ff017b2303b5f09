"""`skerry models measure`: attack what a policy lets leave of a bundle, and write the result into its manifest.

Rule: the chains that are attacked are those that the policy makes, with each set of its rules, by the same functions
devices and hubs use. It needs policies and models both, so it lives above them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import BundleError
from models.cli.flags import accepts_flags
from models.runtime.runner import SampleError
from policies.analysis.cases import TooManyCasesError
from policies.analysis.check import list_transform_chains
from policies.decisions import egress, leakage
from policies.language.document import PolicyError, parse_policy
from policies.model.policy import LeakageLimits, Policy
from policies.model.reasons import Denied
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_text
from wire.process.terminal import open_console, require_path

if TYPE_CHECKING:
    from models.forge.data.types import Data
    from models.forge.leakage.remeasure import AttackCase

TransformChain = dict[str, tuple[Any, ...]]  # transforms per feature

Folder = Annotated[
    Path, typer.Argument(callback=require_path, help="A bundle: the folder with manifest.json.", show_default=False)
]
DataFrom = Annotated[
    str, typer.Option("--data", metavar="PKG:FUNCTION", help="Returns the samples.", show_default=False)
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", callback=require_path, help="Attack the codes as this policy changes them.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes: weaker attacks.")]
Defences = Annotated[bool, typer.Option("--defences", help="Show noise, clip, coarser steps and short answers too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print only; leave the bundle as it is.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


@dataclass(frozen=True)
class MeasureFlags:
    """Arguments and options of `skerry models measure`.

    `bundle`: folder; `data`: PKG:FUNCTION that returns samples; `policy`: whose transforms are applied before the
    attack; `quick`: weaker attacks; `defences`: also standard defences; `dry_run`: leave the manifest alone.
    """

    bundle: Folder
    data: DataFrom
    policy: PolicyFile = None
    quick: Quick = False
    defences: Defences = False
    dry_run: DryRun = False
    as_json: AsJson = False


@accepts_flags(MeasureFlags)
def measure(flags: MeasureFlags) -> None:
    """Attack a bundle's codes as they would leave, print what was won, and add the rows to its manifest.

    A killed measurement goes on where it was: its state lies in BUNDLE.attacks until the end.
    The manifest's digest changes, so the bundle has to be published again. Exit code 40 if the attack had no power
    (nothing was measured) or the policy, by these figures, lets nothing leave; 11, 12 and 13 for a policy, bundle or
    samples that cannot be used.

    Example: skerry models measure digits --data my_data:samples --quick
    """
    opened, rules = _open_bundle(flags.bundle), _read_policy(flags.policy)
    asked = _list_chains(opened, rules)
    cases = _run_attacks(opened, flags.data, asked, quick=flags.quick, defences=flags.defences)
    made = opened if flags.dry_run else _write_rows(opened, cases, len(asked))
    shutil.rmtree(_work_folder(opened), ignore_errors=True)
    verdict = None if rules is None else _check_limits(rules, cases[: len(asked)])
    if flags.as_json:
        open_console().print_json(data=_report_fields(opened, made, cases, verdict))
    else:
        _print_report(opened, made, cases, verdict)
    if any(case.found.void for case in cases[: len(asked)]) or verdict:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _check_limits(rules: Policy, cases: "Sequence[AttackCase]") -> Denied | None:
    """Return the first limit of the policy's base that a finding exceeds; a rule's own are checked where it applies."""
    limits = rules.base.privacy or (LeakageLimits(),)
    found = (leakage.check_limits(each, case.found.rows) for case in cases for each in limits)
    return next(filter(None, found), None)


def _open_bundle(path: Path) -> Bundle:
    """Open the bundle. ExitError(MODEL) if it is unsound."""
    try:
        return open_bundle(path)
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _read_policy(file: Path | None) -> Policy | None:
    """Read and compile the policy, None without one. ExitError(POLICY) if it is unsound."""
    if file is None:
        return None
    text = read_file_text(file, ExitCode.POLICY)
    try:
        return parse_policy(text).compile()
    except PolicyError as error:
        raise ExitError(ExitCode.POLICY, f"{file}: {error}; skerry policy check {file}") from None


def _list_chains(bundle: Bundle, policy: Policy | None) -> list[TransformChain]:
    """Return the transform chains under which features may leave, one for each set of rules.

    ExitError if the policy lets these features leave under no condition.
    """
    features = bundle.manifest.features
    if policy is None:
        return [{spec.name: () for spec in features}]
    try:
        found = list_transform_chains(policy, features)
    except TooManyCasesError as error:
        raise ExitError(ExitCode.POLICY, f"{policy.name}@{policy.version}: {error}") from None
    if not found:
        out = egress.plan_egress(policy.base, features)
        why = f": {out.detail}" if isinstance(out, Denied) else ""
        raise ExitError(
            ExitCode.POLICY, f"under {policy.name}@{policy.version} nothing leaves{why}; nothing to measure"
        )
    return [{plan.spec.name: plan.transforms for plan in chain} for chain in found]


def _run_attacks(
    bundle: Bundle, where: str, asked: list[TransformChain], *, quick: bool, defences: bool
) -> "tuple[AttackCase, ...]":
    """Run the attacks on every chain, with a progress bar, and on the standard defences if asked for.

    ExitError(SAMPLE) for unusable samples, ExitError(MODEL) for an unusable bundle.
    """
    from models.forge.data.types import ForgeError  # noqa: PLC0415
    from models.forge.leakage.remeasure import attack_defences, remeasure_bundle  # noqa: PLC0415 - torch only when it runs

    data = _load_samples(where)
    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=1.0)

        def tell(stage: str, share: float) -> None:
            bar.update(task, description=stage, completed=share)

        try:
            effort, work = "quick" if quick else "full", _work_folder(bundle)
            first = [remeasure_bundle(bundle, data, steps, effort, tell, folder=work) for steps in asked]
            return (*first, *(attack_defences(bundle, data, tell) if defences else ()))
        except ForgeError as error:
            raise ExitError(ExitCode.SAMPLE, str(error)) from None
        except SampleError as error:
            raise ExitError(ExitCode.SAMPLE, f"{where}: {error}") from None
        except BundleError as error:
            raise ExitError(ExitCode.MODEL, str(error)) from None


def _work_folder(bundle: Bundle) -> Path:
    """Return the folder that keeps the state of attacks: beside the bundle, named after it."""
    return bundle.path.with_name(f"{bundle.path.name}.attacks")


def _load_samples(where: str) -> "Data":
    """Load the samples from a user's function. ExitError(SAMPLE) if it cannot be called."""
    from models.forge.data.types import ForgeError  # noqa: PLC0415
    from models.forge.pipeline.loading import load_data  # noqa: PLC0415

    try:
        return load_data(where, Path.cwd())
    except ExitError:  # of a data set that is not here
        raise
    except ForgeError as error:
        raise ExitError(ExitCode.SAMPLE, str(error)) from None


def _write_rows(bundle: Bundle, cases: "Sequence[AttackCase]", asked: int) -> Bundle:
    """Write measured rows into the manifest: of the first `asked` cases, and of defences not yet measured."""
    from models.forge.data.types import ForgeError  # noqa: PLC0415
    from models.forge.leakage.remeasure import replace_leakage_rows  # noqa: PLC0415

    known = {row.chain for row in bundle.manifest.leakage} | {case.chain for case in cases[:asked]}
    new = [*cases[:asked], *(case for case in cases[asked:] if case.chain not in known)]
    try:
        return replace_leakage_rows(bundle, new)
    except ForgeError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{bundle.path}: {error.strerror}; make room or choose another folder") from None


def _report_fields(old: Bundle, made: Bundle, cases: "Sequence[AttackCase]", verdict: Denied | None) -> dict[str, Any]:
    """Return the JSON output: digests, the policy's verdict, and the rows of every chain."""
    from models.forge.leakage.summary import describe_leakage  # noqa: PLC0415 - see `_run_attacks`

    return {
        "model": made.manifest.model,
        "digest": made.digest,
        "digest_before": old.digest,
        "denied": None if verdict is None else {"why": verdict.why.value, "detail": verdict.detail},
        "chains": [
            {
                "what": case.what,
                "chain": case.chain,
                "void": case.found.void,
                "absent": list(case.found.absent),
                "summary": describe_leakage(case.found),
                "cost": case.found.cost._asdict(),
                "rows": [msgspec.to_builtins(row) for row in case.found.rows],
            }
            for case in cases
        ],
    }


def _print_report(old: Bundle, made: Bundle, cases: "Sequence[AttackCase]", verdict: Denied | None) -> None:
    """Print a table of attacks and what they won, the same in words, then the verdict and the digest."""
    from models.forge.leakage.summary import describe_leakage  # noqa: PLC0415 - see `_run_attacks`

    console = open_console()
    table = Table("codes", "attack", "pairs", "figure", "won (at most)", "label alone", "untouched", box=None)
    for case in cases:
        for row in case.found.rows:
            subject = f" of {row.subject}" if row.subject else ""
            won = f"{row.score:.3f} ({row.upper95:.3f})"
            about = f"{row.kind}{subject}: {row.metric}"
            table.add_row(case.what, row.attack, str(row.pairs), about, won, f"{row.floor:.3f}", f"{row.ceiling:.3f}")
    console.print(table)
    for case in cases:
        for line in describe_leakage(case.found):
            console.print(f"{case.what}: {line}", markup=False)
    if verdict:
        console.print(f"denied  {verdict.detail} ({verdict.why})", markup=False)
    if made.digest != old.digest:
        console.print(f"digest  {made.digest} (was {old.digest[:16]}): publish the bundle again", markup=False)
    else:
        console.print(f"digest  {made.digest}: the bundle is unchanged", markup=False)
