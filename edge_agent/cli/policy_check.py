"""Report of `skerry policy check`: everything that can be said of a policy without a sample, and the exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from edge_agent.cli import policy_files as files
from policies.analysis.check import PolicyFinding, check_documents
from policies.analysis.summary import count_releases_by_rule, list_remarks, summarise_policy
from policies.analysis.wording import format_moment
from policies.language.document import compose_policy
from policies.model.policy import Policy, PolicyError
from wire.process.exit_codes import ExitCode, ExitError
from wire.protocol.messages import SensitivityLevel

if TYPE_CHECKING:
    from policies.analysis.prove import CounterExample, EgressProof

_COLOURS = {"error": "red", "warning": "yellow", "remark": "cyan"}


class PolicyReport(msgspec.Struct, frozen=True):
    """The report on one policy. `error`: why it cannot be used at all, "" if it can.

    `claim`: what `proof` is about, as text; both are missing where nothing was to be proven.
    """

    files: tuple[str, ...]
    error: str = ""
    policy: Policy | None = None
    findings: tuple[PolicyFinding, ...] = ()
    claim: str = ""
    proof: "EgressProof | None" = None

    @property
    def sound(self) -> bool:
        """Whether the policy can be used and no finding is an error."""
        return not self.error and all(each.kind != "error" for each in self.findings)

    def text_lines(self) -> list[str]:
        """The report as lines of text. ExitError(POLICY) if the policy is not sound."""
        if self.error or self.policy is None:
            raise ExitError(ExitCode.POLICY, self.error)
        if not self.sound:
            first = next(each for each in self.findings if each.kind == "error")
            raise ExitError(
                ExitCode.POLICY, f"{', '.join(self.files)}: {first.where}{': ' * bool(first.where)}{first.words}"
            )
        said = [typer.style("sound", fg="green") + f"  {', '.join(self.files)}", *summarise_policy(self.policy)]
        said += [_format_finding(each) for each in self.findings]
        return said + self._proof_lines()

    def as_dict(self) -> dict[str, Any]:
        """The report, JSON-able."""
        policy = self.policy
        told: dict[str, Any] = {"sound": self.sound, "files": self.files, "error": self.error}
        if policy is not None:
            told |= {"hash": policy.hash, "expires": policy.expires, "summary": summarise_policy(policy)}
            told |= {"releases": count_releases_by_rule(policy), "findings": msgspec.to_builtins(self.findings)}
        if self.proof is not None:
            counter = self.proof.counter
            told["proof"] = {"claim": self.claim, "holds": counter is None, "cases": self.proof.cases}
            told["proof"]["counter_example"] = None if counter is None else _counter_fields(counter)
        return told

    def exit_by_outcome(self) -> None:
        """End the command with its exit code: POLICY, UNPROVEN or 0."""
        if not self.sound:
            raise typer.Exit(ExitCode.POLICY)
        if self.proof is not None and self.proof.counter is not None:
            raise typer.Exit(ExitCode.UNPROVEN)

    def _proof_lines(self) -> list[str]:
        """The outcome of the proof as text, with the counter-example if it failed."""
        if self.proof is None:
            return []
        if self.proof.counter is None:
            how = (
                f"none of {self.proof.cases} cases lets one" if self.proof.cases else "none that is listed may have one"
            )
            return [typer.style("proven", fg="green") + f"  {self.claim}: {how}"]
        return [
            typer.style("not so", fg="red") + f"  {self.claim}, for one can: {_describe_counter(self.proof.counter)}"
        ]


def check_policy_files(paths: Sequence[Path], above: str, region: str) -> PolicyReport:
    """Check a policy of these layers, and prove that no field above a level can leave.

    `above`: that level; "": prove nothing. `region` "": for any region. ExitError(USAGE) for an unknown level; every
    fault of a document is part of the report.
    """
    named = tuple(map(str, paths))
    level = _parse_level(above)
    try:
        documents = files.read_documents(paths)
        policy = compose_policy(documents)
    except ExitError as stop:
        return PolicyReport(named, str(stop))
    except PolicyError as error:
        return PolicyReport(named, f"{', '.join(named)}: {error}")
    found = check_documents(documents, files.read_today())
    found += tuple(PolicyFinding("remark", "", words) for words in list_remarks(policy))
    if level is None:
        return PolicyReport(named, policy=policy, findings=found)
    claim = f"no field above {level.name} can leave" + (f" for region {region}" if region else "")
    return PolicyReport(
        files=named, error="", policy=policy, findings=found, claim=claim, proof=_prove_claim(policy, level, region)
    )


def _prove_claim(policy: Policy, level: SensitivityLevel, region: str) -> "EgressProof":
    """The proof of a claim. ExitError(UNPROVEN) where the rules distinguish too many cases to look at them all."""
    from policies.analysis.cases import TooManyCasesError  # noqa: PLC0415
    from policies.analysis.prove import EgressClaim, prove_claim  # noqa: PLC0415 - only where it is asked for

    try:
        return prove_claim(policy, EgressClaim(level, region))
    except TooManyCasesError as error:
        raise ExitError(ExitCode.UNPROVEN, f"not proven: {error}") from None


def _parse_level(word: str) -> SensitivityLevel | None:
    """The level that an option names; None for "". ExitError(USAGE) for an unknown one."""
    if word and word not in SensitivityLevel.__members__:
        raise ExitError(
            ExitCode.USAGE, f"--no-field-above {word[:20]}: a label is one of {', '.join(SensitivityLevel.__members__)}"
        )
    return SensitivityLevel[word] if word else None


def _format_finding(finding: PolicyFinding) -> str:
    """A finding as one line, its kind in colour."""
    where = f"{finding.where}: " if finding.where else ""
    return typer.style(f"{finding.kind:<7}", fg=_COLOURS.get(finding.kind)) + f"  {where}{finding.words}"


def _counter_fields(counter: "CounterExample") -> dict[str, Any]:
    """A counter-example, JSON-able: what leaves, to where, under which rules, and the case in which it does."""
    told: dict[str, Any] = msgspec.to_builtins(counter)
    case = {key: value for key, value in told.pop("context").items() if value not in ("", None, {}, [], ())}
    case.pop("level", None)
    return {**told, "level": counter.level.name, "case": case}


def _describe_counter(counter: "CounterExample") -> str:
    """A counter-example as one sentence."""
    told = _counter_fields(counter)
    case = ", ".join(f"{key} {_format_value(value)}" for key, value in told["case"].items())
    rules = f" under {', '.join(counter.rules)}" if counter.rules else ""
    return f"{counter.field} of {counter.level.name} to {counter.hub} in {counter.region}{rules}, where {case}"


def _format_value(value: object) -> str:
    """A value of a counter-example's case as text; local times as a weekday and minute in their zone."""
    if isinstance(value, dict):
        return ", ".join(f"{format_moment(minute)} in {zone}" for zone, minute in value.items())
    if isinstance(value, list | tuple):
        return " and ".join(map(str, value))
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"
