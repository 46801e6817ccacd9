"""A project that has its own Celery, whose tasks dispatch."""

import os
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

from toolpool import SyncDispatcher

app = Celery("project", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(task_default_queue="project", worker_redirect_stdouts=False)
dispatchers: list[SyncDispatcher] = []


@worker_process_init.connect
def open_dispatcher(**_: Any) -> None:
    """Open one dispatcher in each process, after the fork."""
    dispatcher = SyncDispatcher.connect()
    dispatcher.open()
    dispatchers.append(dispatcher)


@worker_process_shutdown.connect
def close_dispatcher(**_: Any) -> None:
    """Close it with the process."""
    dispatchers.pop().close()


@app.task
def agent_step(number: int) -> list[Any]:
    """Answer the tool calls of one model response with a dispatcher of this task."""
    with SyncDispatcher.connect() as dispatcher:
        return answers(dispatcher, number)


@app.task
def agent_step_of_process(number: int) -> list[Any]:
    """Answer them with the dispatcher of this process."""
    return answers(dispatchers[0], number)


def answers(dispatcher: SyncDispatcher, number: int) -> list[Any]:
    """The results of two calls, of which one is right."""
    calls: list[dict[str, Any]] = [
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": number, "b": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {"a": "many"}},
    ]
    turn = dispatcher.dispatch({"content": calls}, session=str(uuid4()))
    return [result.data if result.ok else result.code for result in turn]
