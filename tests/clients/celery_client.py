"""Sends the project's tasks some numbers, and prints the results as JSON."""

import json
import sys

import celery
from celery_project import agent_step, agent_step_of_process

told = {
    task.name.rpartition(".")[2]: [
        each.get(timeout=60) for each in [task.delay(number) for number in range(int(sys.argv[1]))]
    ]
    for task in (agent_step, agent_step_of_process)
}
print(json.dumps({"celery": celery.__version__, **told}))
