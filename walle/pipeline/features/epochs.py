"""A new epoch of an outbox: its unsent uploads under new numbers, and the reports of what was lost.

An epoch is the id under which a device numbers its uploads from 1. A device starts a new one where its numbers may no
longer mean to the cloud what they mean to the device (docs/adr/0022).
"""

import dataclasses
import secrets
import sqlite3
from collections.abc import Mapping, Sequence

from walle.pipeline.features import checksums
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.features.store_lock import Mark
from walle.pipeline.features.store_schema import StoreState, is_sound, outbox_bytes, write_state
from walle.protocol import Origin, origins_from_text


def start_epoch(
    db: sqlite3.Connection, state: StoreState, losses: Sequence[Loss], now_ms: int
) -> tuple[StoreState, list[Loss]]:
    """Start a new epoch in the open transaction; return its state, and the losses with those found on the way.

    Every unsent upload keeps its place: upload `acked + n` becomes upload n. A row that is missing or fails its
    checksum is replaced by the report of its loss. The other reports follow the moved uploads.
    """
    epoch = secrets.token_hex(16)
    chain = checksums.first_link(epoch)
    moved = max(0, state.last_seq - state.acked)
    db.execute("DELETE FROM outbox WHERE seq <= ? OR seq > ?", (state.acked, state.last_seq))
    sums = dict[int, int]()
    for seq, topic, payload, created_ms, checksum in db.execute(
        "SELECT seq, topic, payload, created_ms, checksum FROM outbox"
    ):
        if is_sound(topic, payload, created_ms, checksum):
            sums[seq] = checksum
    damaged = _runs(state.epoch, [seq for seq in range(state.acked + 1, state.last_seq + 1) if seq not in sums])
    reports = [(seq, loss) for loss in damaged for seq in range(loss.first_seq, (loss.last_seq or 0) + 1)]
    reports += [(state.last_seq + index, loss) for index, loss in enumerate(losses, 1)]
    rows = []
    for seq, loss in reports:
        payload = loss.encode()
        sums[seq] = checksums.row_checksum(LOSS_TOPIC, payload, now_ms)
        rows.append((seq, LOSS_TOPIC, payload, now_ms, sums[seq]))
    insert = (
        "INSERT OR REPLACE INTO outbox (seq, topic, payload, created_ms, checksum, chain) VALUES (?, ?, ?, ?, ?, 0)"
    )
    db.executemany(insert, rows)
    links = []
    first_chain = chain
    for seq in range(state.acked + 1, state.acked + len(sums) + 1):
        chain = checksums.next_link(chain, sums[seq])
        links.append((seq - state.acked, chain, seq))
    # In ascending order: each number is free once the row before it has moved.
    db.executemany("UPDATE outbox SET seq = ?, chain = ? WHERE seq = ?", links)
    older = [
        Origin(origin.epoch, origin.acked, origin.offset + state.acked, max(0, origin.upto - state.acked))
        for origin in state.origins
    ]
    origins = (Origin(state.epoch, state.acked, state.acked, moved), *older)
    started = dataclasses.replace(
        state,
        epoch=epoch,
        origins=origins[: Origin.MAX_COUNT],
        acked=0,
        acked_chain=first_chain,
        last_seq=len(links),
        last_chain=chain,
        commits=state.commits + 1,
        outbox_bytes=outbox_bytes(db),
    )
    write_state(db, started)
    return started, [*losses, *damaged]


def _runs(epoch: str, seqs: Sequence[int]) -> list[Loss]:
    """Return one loss for each run of consecutive numbers."""
    runs: list[Loss] = []
    for seq in seqs:
        first_seq = seq
        if runs and runs[-1].last_seq == seq - 1:
            first_seq = runs.pop().first_seq
        runs.append(Loss(epoch, first_seq, seq, LossCause.DAMAGED))
    return runs


def _beyond(known: Mapping[str, int], epoch: str, last_seq: int | None) -> list[Loss]:
    """Return the loss of the uploads of an epoch after those that are known, if there are any."""
    first_seq = known.get(epoch, 0) + 1
    if last_seq is not None and last_seq < first_seq:
        return []
    return [Loss(epoch, first_seq, last_seq, LossCause.DEVICE_RESTORED)]


def rolled_back(state: StoreState, mark: Mark | None) -> list[Loss]:
    """Return the reports of uploads that the lock file's mark knows of and the file does not."""
    if mark is None:
        return []
    if mark.epoch != state.epoch:
        # A file that continues the mark's epoch was killed before its new mark was written; any other was replaced.
        known = {origin.epoch: origin.offset + origin.upto for origin in state.origins}
        losses = _beyond(known, mark.epoch, mark.last_seq)
        if mark.epoch not in known:
            if state.commits:  # a copy from before the mark's epoch, of which an unknown number went on
                losses.append(Loss(state.epoch, state.last_seq + 1, None, LossCause.DEVICE_RESTORED))
            for origin in origins_from_text(mark.origins):  # the newest first
                if origin.epoch == state.epoch:
                    break
                # Of an epoch before the last one, from which nothing was moved, only a bound is known.
                is_exact = origin.upto or origin.offset == origin.acked
                losses += _beyond(known, origin.epoch, origin.offset + origin.upto if is_exact else None)
                if origin.epoch in known:
                    break  # what is older is common to both
        return losses
    if mark.commits > state.commits and mark.last_seq > state.last_seq:
        return [Loss(mark.epoch, state.last_seq + 1, mark.last_seq, LossCause.DEVICE_RESTORED)]
    if mark.commits == state.commits and mark.last_chain != state.last_chain:
        return [Loss(mark.epoch, state.acked + 1, mark.last_seq, LossCause.DEVICE_RESTORED)]
    return []
