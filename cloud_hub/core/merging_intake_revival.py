"""Takes up what was owed when the last process ended: opens it again in memory, computes it. Pure."""

from cloud_hub.core.commands import Command, Forget, Question
from cloud_hub.core.merging_context_parts import CoreContext, end
from wire.errors import RemoteError
from wire.protocol.codec import split
from wire.protocol.messages import Reason


def revive(context: CoreContext, kept: Question, now: float) -> list[Command]:
    """One question of the store."""
    try:
        opened = context.unseal(split(kept.sealed))
    except RemoteError:
        opened = Reason.SCHEMA
    if isinstance(opened, Reason):
        # Its key was destroyed, or its bytes are damaged: forgotten, so that `Ask` says unknown and it comes again.
        context.counts["forgotten"] += 1
        return [Forget(kept.key)]
    context.counts["restored"] += 1
    work = context.rules.decode(opened.question)
    question = context.begin(kept.key, kept.digest, opened, None if isinstance(work, Reason) else work, now)
    question.stored, question.keep_until_ms = True, kept.keep_until_ms
    return end(question, work, now) if isinstance(work, Reason) else []
