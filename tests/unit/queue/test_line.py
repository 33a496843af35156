"""Test writes that wait for the database: applications take turns."""

from __future__ import annotations

import asyncio

import pytest

from headgate.queue.messages import posts
from headgate.queue.messages.posts import GroupLine, MessagePost, Overloaded, Write
from headgate.queue.messages.records import MessageDraft, PartitionFull


def write(messages: int = 1, chars: int = 1) -> Write:
    drafts = (MessageDraft("x" * chars),) * messages
    return Write(MessagePost("a", "q", drafts), asyncio.get_running_loop().create_future())


async def test_a_small_write_is_in_the_next_group() -> None:
    waiting = GroupLine()
    many = [write(1_000) for _ in range(500)]
    for one in many:
        waiting.put("flood", one)
    little = write()
    waiting.put("other", little)
    first = waiting.group()
    assert little in first
    assert sum(one.messages for one in first) <= posts.GROUP_MAX_MESSAGES
    rest = [one for one in first if one is not little]
    while waiting:
        rest += waiting.group()
    assert rest == many, "what one application wants keeps its order"


@pytest.mark.heavy
async def test_one_application_does_not_take_all_places_nor_all_memory() -> None:
    waiting = GroupLine()
    with pytest.raises(PartitionFull):
        for _ in range(posts.EACH_MAX + 1):
            waiting.put("flood", write())
    large = GroupLine()
    with pytest.raises(PartitionFull):
        for _ in range(100):
            large.put("flood", write(10, 100_000))
    for one in (waiting, large):
        one.put("other", write())
    with pytest.raises(Overloaded):
        for n in range(posts.WAITING_MAX):
            waiting.put(f"app {n}", write())
    found = 0
    while waiting:
        found += len(waiting.group())
    assert found == posts.WAITING_MAX


async def test_a_write_that_must_be_alone_is_a_group_of_its_own_and_waits_for_one_at_most() -> None:
    waiting = GroupLine()
    first, single, last = write(), write(), write()
    single.alone = True
    waiting.put("a", first)
    waiting.put("", single)
    waiting.put("a", last)
    assert [waiting.group() for _ in range(3)] == [[first], [single], [last]]
