"""Segment files: what was written is read, a torn tail is cut, anything else stops."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, HeadMoved, NotFound, Unavailable
from ropewalk.ledger.channel.receipted import MARK, ReceiptMark, read_mark
from ropewalk.ledger.channel.segments.format import ALIGN, digest_in
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.segments.writer import SegmentWriter

BLOCKS = [
    [b'{"header":%d}' % height, *(b'{"e":"%d-%d"}' % (height, i) for i in range(1 + height % 3))]
    for height in range(7)
]


def fill(folder: Path, blocks=BLOCKS, **options) -> None:
    with SegmentWriter(folder, **options) as writer:
        for lines in blocks:
            writer.append(writer.height, lines)
        writer.sync()


def stored(folder: Path) -> list[list[bytes]]:
    return [record.lines for record in Segments(folder).scan()]


def overwrite(path: Path, offset: int, piece: bytes) -> None:
    """Bytes in the place of others. To write the whole file anew is to wait for the disk, each time."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(piece)


def set_mark(folder: Path, blocks: int, whole: Path | None = None) -> None:
    """Let only the first blocks be receipted, as if the writer had been killed in the middle of what follows."""
    mark = ReceiptMark()
    if blocks:
        place = list(Segments(whole or folder).scan())[blocks - 1].place
        head = Segments(whole or folder).peek(place.segment, place.offset, ALIGN)
        mark = ReceiptMark(blocks, place, digest_in(head))
    (folder / MARK).write_bytes(mark.to_bytes())


def marked(folder: Path) -> int:
    mark = read_mark(folder)
    assert mark is not None
    return mark.blocks


def only_segment(folder: Path) -> Path:
    (path,) = (folder / "segments").iterdir()
    return path


def test_what_was_appended_is_read_in_order(tmp_path):
    fill(tmp_path)
    assert stored(tmp_path) == BLOCKS
    assert [Segments(tmp_path).find(h).lines for h in range(7)] == BLOCKS


def test_a_known_place_reads_one_block(tmp_path):
    fill(tmp_path)
    for record in Segments(tmp_path).scan():
        assert Segments(tmp_path).read(record.place, record.height) == record
    with pytest.raises(NotFound):
        Segments(tmp_path).find(7)


def test_segments_rotate_by_size_and_join_without_seam(tmp_path):
    fill(tmp_path, segment_bytes=2 * ALIGN)
    assert len(Segments(tmp_path).starts()) == 7
    assert stored(tmp_path) == BLOCKS
    assert Segments(tmp_path).find(3).lines == BLOCKS[3]
    with SegmentWriter(tmp_path, segment_bytes=2 * ALIGN) as writer:
        assert writer.height == 7 and writer.torn is None


def test_reading_can_go_on_after_a_place(tmp_path):
    fill(tmp_path, segment_bytes=4 * ALIGN)
    records = list(Segments(tmp_path).scan())
    for record in records:
        assert list(Segments(tmp_path).scan(record.place, record.height + 1)) == records[record.height + 1 :]


def test_a_height_can_be_written_once(tmp_path):
    with SegmentWriter(tmp_path) as writer:
        writer.append(0, [b"{}"])
        with pytest.raises(HeadMoved):
            writer.append(0, [b"{}"])


def test_truncation_anywhere_keeps_whole_blocks(tmp_path, flip_step):
    fill(tmp_path / "whole")
    raw = only_segment(tmp_path / "whole").read_bytes()
    ends = [record.place.end for record in Segments(tmp_path / "whole").scan()]
    for size in range(0, len(raw) + 1, flip_step):
        folder = tmp_path / f"cut-{size}"
        (folder / "segments").mkdir(parents=True)
        (folder / "segments" / f"{0:020d}.seg").write_bytes(raw[:size])
        (folder / MARK).write_bytes(ReceiptMark().to_bytes())  # nothing was acknowledged
        whole = sum(end <= size for end in ends)
        assert stored(folder) == BLOCKS[:whole]
        with SegmentWriter(folder) as writer:
            assert writer.height == whole
            boundary = ends[whole - 1] if whole else (ALIGN if size >= ALIGN else 0)
            assert (writer.torn is not None) == (size > boundary)
            if writer.torn is not None:
                assert writer.torn.kept is not None and writer.torn.kept.read_bytes() == raw[boundary:size]
            writer.append(whole, [b"{}"])
            writer.sync()
        assert stored(folder) == [*BLOCKS[:whole], [b"{}"]]


def test_writer_refuses_receipted_log_cut_anywhere(tmp_path):
    fill(tmp_path)
    path = only_segment(tmp_path)
    raw = path.read_bytes()
    for size in [*range(0, len(raw), 7), len(raw) - 1]:
        path.write_bytes(raw[:size])
        for _ in range(2):  # refusing changes nothing
            with pytest.raises(Damaged) as caught:
                SegmentWriter(tmp_path)
            assert "ledger repair" in caught.value.to_problem()["advice"]
        with pytest.raises(Damaged):
            stored(tmp_path)
        assert path.read_bytes() == raw[:size]
    path.unlink()
    with pytest.raises(Damaged):
        SegmentWriter(tmp_path)
    assert not path.exists()


def test_writer_refuses_zeroed_receipted_tail(tmp_path):
    fill(tmp_path)
    path = only_segment(tmp_path)
    raw = path.read_bytes()
    for size in (1, 64, 200, len(raw)):
        path.write_bytes(raw[:-size] + bytes(size))
        with pytest.raises(Damaged):
            SegmentWriter(tmp_path)
        with pytest.raises(Damaged):
            stored(tmp_path)
        assert path.stat().st_size == len(raw)


def test_writer_refuses_another_log_under_its_mark(tmp_path):
    fill(tmp_path / "ours")
    fill(tmp_path / "theirs", [[line.replace(b"header", b"hoader") for line in lines] for lines in BLOCKS])
    only_segment(tmp_path / "ours").write_bytes(only_segment(tmp_path / "theirs").read_bytes())
    with pytest.raises(Damaged, match="not the receipted block"):
        SegmentWriter(tmp_path / "ours")


@pytest.mark.parametrize("blocks", [0, 3, 7])
def test_first_page_lost_above_mark_is_torn(tmp_path, blocks):
    """Finding S6: a power cut may lose the first page of unsynced blocks and keep the pages behind it."""
    fill(tmp_path, [*BLOCKS[:blocks], *([b'{"header":9}', b"x" * 9000] for _ in range(3))])
    set_mark(tmp_path, blocks)
    path = only_segment(tmp_path)
    raw = path.read_bytes()
    start = ALIGN + sum(ALIGN + record.place.length for record in list(Segments(tmp_path).scan())[:blocks])
    end = -(-(start + 1) // 4096) * 4096
    overwrite(path, start if blocks else 0, bytes(end - (start if blocks else 0)))
    assert stored(tmp_path) == BLOCKS[:blocks]  # reading writes nothing
    assert path.stat().st_size == len(raw)
    with SegmentWriter(tmp_path) as writer:
        assert writer.height == blocks and writer.torn is not None and writer.torn.kept is not None
        writer.append(blocks, [b"{}"])
        writer.sync()
    assert stored(tmp_path) == [*BLOCKS[:blocks], [b"{}"]]


def test_flip_above_mark_is_damage(tmp_path):
    """No crash flips a bit: what may have been receipted is never cut."""
    fill(tmp_path)
    set_mark(tmp_path, 5)
    path = only_segment(tmp_path)
    last = list(Segments(tmp_path).scan())[-1].place
    overwrite(path, last.offset + ALIGN + 2, b"\x01")
    with pytest.raises(Damaged):
        stored(tmp_path)
    with pytest.raises(Damaged):
        SegmentWriter(tmp_path)


def test_mark_follows_every_sync_and_never_leads(tmp_path):
    seen = []

    class Watching(Disk):
        def fsync(self, descriptor):
            super().fsync(descriptor)
            if (tmp_path / MARK).exists():
                seen.append(marked(tmp_path))

    with SegmentWriter(tmp_path, disk=Watching()) as writer:
        for height, lines in enumerate(BLOCKS):
            writer.append(height, lines)
            seen.clear()
            writer.sync()
            assert set(seen) <= {height}  # synced before it is marked
            assert marked(tmp_path) == height + 1
    assert Segments(tmp_path).check_receipted() == read_mark(tmp_path)
    assert marked(tmp_path) == len(BLOCKS)


def test_mark_is_raised_when_killed_before_it(tmp_path):
    fill(tmp_path)
    set_mark(tmp_path, 2)
    with SegmentWriter(tmp_path) as writer:
        assert writer.height == 7 and writer.torn is None
    assert marked(tmp_path) == 7


def test_writer_refuses_lost_mark(tmp_path):
    """An index cannot stand in for the mark: any reader may have built it again from what is left of the log."""
    fill(tmp_path)
    last = list(Segments(tmp_path).scan())[-1].place
    raw = (tmp_path / MARK).read_bytes()
    for left in (None, b"", raw[:-1], raw + b"x", raw[:15] + b"\x01" + raw[16:], b"x" + raw[1:]):
        (tmp_path / MARK).unlink(missing_ok=True)
        if left is not None:
            (tmp_path / MARK).write_bytes(left)
        with pytest.raises(Damaged, match="mark of receipted blocks"):
            SegmentWriter(tmp_path)
        with pytest.raises(Damaged):
            SegmentWriter(tmp_path, after=last, height=7)
        assert stored(tmp_path) == BLOCKS  # it can be read


def test_full_disk_at_the_mark_gives_no_receipt(tmp_path):
    class NoMark(Disk):
        failing = False

        def write_at(self, descriptor, raw, offset):
            if self.failing:
                raise OSError(28, "No space left on device")
            super().write_at(descriptor, raw, offset)

    disk = NoMark()
    with SegmentWriter(tmp_path, disk=disk) as writer:
        writer.append(0, [b"{}"])
        disk.failing = True
        with pytest.raises(Unavailable):
            writer.sync()
    with SegmentWriter(tmp_path) as writer:
        assert writer.height == 1


def test_every_single_byte_flip_is_located_and_stops_the_writer(tmp_path, flip_step):
    fill(tmp_path)
    path = only_segment(tmp_path)
    raw = path.read_bytes()
    places = [record.place for record in Segments(tmp_path).scan()]
    for position in range(0, len(raw), flip_step):
        overwrite(path, position, bytes([raw[position] ^ 0x41]))
        block = next((h for h, place in enumerate(places) if position < place.end), 0)
        with pytest.raises(Damaged) as caught:
            stored(tmp_path)
        assert caught.value.fields["height"] == (0 if position < ALIGN else block)
        with pytest.raises(Damaged):
            SegmentWriter(tmp_path)
        assert path.stat().st_size == len(raw)  # nothing was cut
        overwrite(path, position, raw[position : position + 1])


def test_a_flip_to_nul_is_damage_not_a_torn_tail(tmp_path, flip_step):
    fill(tmp_path)
    path = only_segment(tmp_path)
    raw = path.read_bytes()
    last = list(Segments(tmp_path).scan())[-1].place
    for position in range(last.offset + ALIGN, last.end, flip_step):
        path.write_bytes(raw[:position] + b"\0" + raw[position + 1 :])
        with pytest.raises(Damaged):
            stored(tmp_path)


def test_an_unwritten_sector_in_the_last_block_is_a_torn_tail(tmp_path):
    big = [b'{"header":1}', b"x" * 3000]
    whole = tmp_path / "whole"
    fill(whole, [*BLOCKS, big])
    fill(tmp_path, [*BLOCKS, big])
    path = only_segment(tmp_path)
    raw = path.read_bytes()
    last = list(Segments(whole).scan())[-1].place
    sector = (last.offset // 512 + 2) * 512
    path.write_bytes(raw[:sector] + bytes(512) + raw[sector + 512 :])
    with pytest.raises(Damaged):  # it was receipted
        SegmentWriter(tmp_path)
    set_mark(tmp_path, 7, whole)
    assert stored(tmp_path) == BLOCKS
    with SegmentWriter(tmp_path) as writer:
        assert writer.torn is not None and writer.torn.offset == last.offset


def test_zeros_behind_the_last_block_are_a_torn_tail(tmp_path):
    fill(tmp_path)
    with only_segment(tmp_path).open("ab") as stream:
        stream.write(bytes(1000))
    assert stored(tmp_path) == BLOCKS
    with SegmentWriter(tmp_path) as writer:
        assert writer.torn is not None and writer.torn.size == 1000


def test_a_torn_segment_that_is_not_the_last_is_damage(tmp_path):
    fill(tmp_path, segment_bytes=4 * ALIGN)
    first = Segments(tmp_path).path(0)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(Damaged):
        stored(tmp_path)
    with pytest.raises(Damaged):
        SegmentWriter(tmp_path)


def test_a_missing_segment_is_damage(tmp_path):
    fill(tmp_path, segment_bytes=2 * ALIGN)
    Segments(tmp_path).path(3).unlink()
    with pytest.raises(Damaged) as caught:
        stored(tmp_path)
    assert caught.value.fields["height"] == 3


def test_a_second_writer_in_this_process_is_refused(tmp_path):
    with SegmentWriter(tmp_path), pytest.raises(Unavailable):
        SegmentWriter(tmp_path)
    SegmentWriter(tmp_path).close()


def _try_to_write(folder: Path, answers) -> None:
    try:
        SegmentWriter(folder).close()
        answers.put("opened")
    except Unavailable as error:
        answers.put(error.detail)


def test_a_second_writer_in_another_process_is_refused_by_name(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with SegmentWriter(tmp_path):
        process = context.Process(target=_try_to_write, args=(tmp_path, answers), daemon=True)
        process.start()
        answer = answers.get(timeout=LIMIT_S)
        process.join(LIMIT_S)
    import os

    assert f"process {os.getpid()}" in answer


def test_readers_see_whole_blocks_while_a_writer_writes(tmp_path):
    with SegmentWriter(tmp_path) as writer:
        for height, lines in enumerate(BLOCKS):
            writer.append(height, lines)
            assert stored(tmp_path) == BLOCKS[: height + 1]


class FullDisk(Disk):
    """Writes `room` bytes, then the disk is full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write_some(self, fd, raw):
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        taken = super().write_some(fd, raw[: self.room])
        self.room -= taken
        return taken


def test_full_disk_keeps_whole_blocks_then_goes_on(tmp_path):
    total = sum(len(b"\n".join(lines)) + 2 * ALIGN for lines in BLOCKS) + ALIGN
    for room in range(0, total, 7):
        folder = tmp_path / str(room)
        disk = FullDisk(room)
        try:
            writer = SegmentWriter(folder, disk=disk)
        except Unavailable:
            SegmentWriter(folder).close()  # with room again it opens
            continue
        with writer:
            done = 0
            try:
                for height, lines in enumerate(BLOCKS):
                    writer.append(height, lines)
                    done += 1
            except Unavailable:
                pass
            assert stored(folder) == BLOCKS[:done]
            disk.room = 1 << 20
            for height in range(done, len(BLOCKS)):
                writer.append(height, BLOCKS[height])
            writer.sync()
        assert stored(folder) == BLOCKS


def test_after_a_failed_sync_nothing_more_is_written(tmp_path):
    class NoSync(Disk):
        failing = False

        def fsync(self, fd):
            if self.failing:
                raise OSError(5, "Input/output error")
            super().fsync(fd)

    disk = NoSync()
    with SegmentWriter(tmp_path, disk=disk) as writer:
        writer.append(0, [b"{}"])
        disk.failing = True
        with pytest.raises(Unavailable):
            writer.sync()
        disk.failing = False
        with pytest.raises(Unavailable):
            writer.append(1, [b"{}"])
