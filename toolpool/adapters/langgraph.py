"""LangGraph's nodes: https://docs.langchain.com/oss/python/langgraph/graph-api."""

from importlib import import_module
from typing import Any

from toolpool.adapters.offered import Offered
from toolpool.pool import Dispatcher


def langgraph_tool_node(dispatcher: Dispatcher, *, key: str = "messages", **options: Any) -> Any:
    """A node in place of `ToolNode`: runs the calls of the last message in the pool.

    It reads and writes the state's messages at `key`. Its session is the `thread_id` of the run's
    configuration, if `session` is not given. Bind the tools with
    `model.bind_tools(dispatcher.tools("langchain"))`. `options` are `session`, `only`, `context`,
    `timeout` and `wait` of `dispatch`. Raises TypeError for another option.
    """
    messages: Any = import_module("langchain_core.messages")
    runnables: Any = import_module("langchain_core.runnables")
    offered = Offered(dispatcher, **options)

    async def run_tools(state: Any, config: Any) -> Any:
        is_list = isinstance(state, list)
        given = state if is_list else state[key] if isinstance(state, dict) else getattr(state, key)
        thread = config.get("configurable", {}).get("thread_id")
        session = None if thread is None else str(thread)
        turn = await offered.dispatch(given[-1], "langchain", offered.session or session)
        answers = messages.convert_to_messages(turn.messages())
        return answers if is_list else {key: answers}

    def run_blocking(state: Any) -> Any:
        raise TypeError(
            "the pool's node is asynchronous: run the graph with `ainvoke` or `astream`"
        )

    return runnables.RunnableLambda(run_blocking, afunc=run_tools, name="tools")
