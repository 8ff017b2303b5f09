"""How many questions go to the engine now. Dispatch when idle: an idle engine waits for no fuller batch."""


def size(queued: int, max_batch: int, free_slots: int) -> int:
    """Questions for the next batch; 0 = wait. With several free slots the queue is shared evenly among them."""
    if queued <= 0 or free_slots <= 0:
        return 0
    return min(max_batch, -(-queued // free_slots))
