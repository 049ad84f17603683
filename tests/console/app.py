"""The application behind the console's tests: jobs that succeed, fail, wait, print and take arguments."""

from __future__ import annotations

import asyncio

import mainspring
from mainspring import App

app = App("console")


@app.job
async def hello(name: str = "world") -> str:
    print(f"hello {name}")
    return f"hello {name}"


@app.job(retries=0)
async def fails(message: str = "the shop does not answer") -> None:
    print("about to fail")
    raise RuntimeError(message)


@app.job
async def sleeps(seconds: float = 60.0) -> None:
    task = mainspring.current_task()
    for second in range(int(seconds)):
        print(f"second {second}")
        task.progress({"done": second, "of": int(seconds)})
        await asyncio.sleep(1)


@app.job(retries=0)
async def sometimes(fail: bool = True) -> str:
    """Fails unless it is told not to."""
    if fail:
        raise ValueError("told to fail")
    return "fine"
