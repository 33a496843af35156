"""One build that belongs to no buildset, run by a real executor on a store in memory, and waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from headgate.adapters.process.runner import ProcessRunner
from headgate.adapters.process.tail import follow
from headgate.base.tasks import run_until
from headgate.gate.work import BuildOutcome, BuildSpec
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.executor import Executor
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store


async def run(spec: BuildSpec, runner: ProcessRunner, say: Callable[[bytes], None]) -> BuildOutcome:
    """Run a build, and pass its log to `say` as it is written. If cancelled, nothing of the build keeps running."""
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, Map().path), lambda: int(time.time() * 1000))
    executor, stop, answered = Executor(context, runner, builds_max=1), asyncio.Event(), asyncio.Event()
    answers: list[bytes] = []

    async def ask() -> None:
        await context.mirror.ready()
        async with store.session("try") as session:
            meta = {"tenant": spec.tenant, "pipeline": spec.pipeline, "job": spec.job.name, "change": spec.change.id}
            params = msgspec.json.encode(spec)
            answers.append(await context.builds.call(session, params, precedence=100, meta=meta))
        answered.set()

    async def tell() -> None:
        async for chunk in follow(runner.log_root / spec.build / "job-output.txt", answered.is_set):
            say(chunk)
        stop.set()

    try:
        await run_until(stop, context.mirror.run(), executor.membership.serve(executor.run, stop), ask(), tell())
    finally:
        await runner.close()
    return msgspec.json.decode(answers[0], type=BuildOutcome)
